-- discard: forgets dead messages of a group.
--
-- KEYS  1 messages    hash: id -> body
--       2 options     hash: id -> options, only of messages that have any
--       3 refs        hash: id -> groups that still need the body, only where several do
--       4 dead        zset: id -> ms at which it died
--       5 deliveries  hash: id -> "count flag delayed_for reason"
--       6 operation   string: what an earlier run of this call returned, expiring
-- ARGV  1 memory      how long the result is remembered, ms
--       then the ids of messages (at most 1000)
--
-- Returns a text with a 1 for each that was dead, and a 0 for each that was not, or was named before.
-- Twice: the second run finds the result of the first remembered, and returns it.

local messages, options, refs = KEYS[1], KEYS[2], KEYS[3]
local dead, deliveries, operation = KEYS[4], KEYS[5], KEYS[6]
local memory = ARGV[1]

-- Forgets the bodies that no group needs any more.
local function drop(ids)
  local gone = ids
  if redis.call('HLEN', refs) > 0 then
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
  redis.call('HDEL', options, unpack(gone))
end

local before = redis.call('GET', operation)
if before then
  return before
end

-- Reading every key that will be written finds a key of a wrong type before anything is.
redis.call('HLEN', messages)
redis.call('HLEN', options)
redis.call('HLEN', refs)
redis.call('HLEN', deliveries)
local ids, seen, result = {}, {}, {}
for i = 2, #ARGV do
  local id = ARGV[i]
  result[i - 1] = '0'
  if not seen[id] and redis.call('ZSCORE', dead, id) then
    seen[id] = true
    ids[#ids + 1] = id
    result[i - 1] = '1'
  end
end
result = table.concat(result)
if #ids == 0 then
  return result
end

redis.call('ZREM', dead, unpack(ids))
redis.call('HDEL', deliveries, unpack(ids))
drop(ids)
redis.call('SET', operation, result, 'PX', memory)
return result
