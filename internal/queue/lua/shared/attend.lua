-- attend: notes that a subscription lives.
--
-- Uses     now
-- Defines  attend(workers, subscription, worker)
--
-- Callers read the type of workers before their first write.

-- Notes the subscription with a text "<ms for which the note is valid> <who>", and keeps since when
-- it is there. Its first note removes those that are no longer valid, of up to a thousand.
local function attend(workers, subscription, worker)
  local valid, who = string.match(worker, '^(%d+) (.*)$')
  local since = string.match(redis.call('HGET', workers, subscription) or '', '^%d+')
  if not since and redis.call('HLEN', workers) > 0 then
    local names = redis.call('HKEYS', workers)
    names = {unpack(names, 1, math.min(#names, 1000))}
    for i, noted in ipairs(redis.call('HMGET', workers, unpack(names))) do
      if tonumber(string.match(noted, '^%d+ %d+ (%d+)') or 0) < now then
        redis.call('HDEL', workers, names[i])
      end
    end
  end
  redis.call('HSET', workers, subscription,
    string.format('%s %d %d ', since or string.format('%d', now), now, now + valid) .. who)
end
