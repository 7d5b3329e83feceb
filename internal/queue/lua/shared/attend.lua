-- attend: notes that a subscription lives, and whether the server hears its process.
--
-- Uses     now, listeners, history
-- Defines  attend(workers, subscription, worker)
--
-- Callers read the type of workers before their first write.

-- Notes the subscription with a text "<ms for which the note is valid> <who> <address>", and keeps
-- since when it is there. If its process listens on the channel of the address, the note has the
-- server's history: from then on the server can tell when the process is gone. Its first note
-- removes those that are no longer valid, of up to a thousand.
local function attend(workers, subscription, worker)
  local valid, who = string.match(worker, '^(%d+) (.*)$')
  local channel = string.match(who, '^%S+ %S+ %S+ %S+ (.*)|')
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
  local heard = channel and (listeners(channel) or 0) > 0 and history() or '-'
  redis.call('HSET', workers, subscription,
    string.format('%s %d %d %s 0 ', since or string.format('%d', now), now, now + valid, heard) .. who)
end
