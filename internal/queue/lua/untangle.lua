-- untangle: forgets a delay id that only one of its two keys has.
--
-- KEYS
--   names  hash: delay id -> id
--   taken  zset: delay id -> ms at which it is free
-- ARGV
--   name  text: the delay id as it is stored
--
-- Returns 1 if only one key had it, else 0; then nothing is changed.
-- Twice: the second run finds nothing to do.

local owner, free = redis.call('HGET', names, name), redis.call('ZSCORE', taken, name)
if (owner and free) or not (owner or free) then
  return 0
end
redis.call('HDEL', names, name)
redis.call('ZREM', taken, name)
return 1
