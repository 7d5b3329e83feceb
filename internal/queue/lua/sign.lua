-- sign: notes that a subscription lives, besides what it says anyhow.
--
-- KEYS
--   workers  hash: subscription -> "since seen until heard gone who address"
--   stats    hash: counters and times of the group
-- ARGV
--   subscription  text:
--   worker        text: "<ms for which the note is valid> <who> <address>"
--
-- Without a note it does nothing, because the subscription may have ended. A claim or an extension
-- makes the first.
-- Returns 1 if there is a note, else 0.
-- Twice: the second run notes the same anew.

--@use now heard attend

if redis.call('HEXISTS', workers, subscription) == 0 then
  return 0
end
redis.call('HLEN', stats) -- finds a key of a wrong type before the first write
redis.call('HDEL', workers, '') -- the first write is a deletion: it works at maxmemory
attend(workers, subscription, worker)
redis.call('HSET', stats, 'shown', string.format('%d', now))
return 1
