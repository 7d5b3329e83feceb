-- forget: forgets messages that a group needs no more.
--
-- Uses     messages, options, refs
-- Defines  forget(ids)
--
-- The snippet reads the three keys: one of a wrong type is found before the first write.

redis.call('HLEN', messages)
local some = redis.call('EXISTS', options, refs) > 0 -- most often there is neither
local have_options = some and redis.call('HLEN', options) > 0
local have_refs = some and redis.call('HLEN', refs) > 0

-- Forgets the bodies and options of the messages, except where other groups need them. Those are
-- counted one less in refs. A count is set, not lowered, so that a repeated write changes nothing.
local function forget(ids)
  local gone = ids
  if have_refs then
    gone = {}
    local left, counts = redis.call('HMGET', refs, unpack(ids)), {}
    for i, id in ipairs(ids) do
      if left[i] and tonumber(left[i]) > 1 then
        counts[#counts + 1] = id
        counts[#counts + 1] = left[i] - 1
      else
        gone[#gone + 1] = id
      end
    end
    if #counts > 0 then
      redis.call('HSET', refs, unpack(counts))
    end
    if #gone == 0 then return end
    redis.call('HDEL', refs, unpack(gone))
  end
  redis.call('HDEL', messages, unpack(gone))
  if have_options then
    redis.call('HDEL', options, unpack(gone))
  end
end
