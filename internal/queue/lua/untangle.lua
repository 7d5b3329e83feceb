-- untangle: forgets a delay id that only one of its two keys has.
--
-- KEYS  1 names  hash: delay id -> id
--       2 taken  zset: delay id -> ms at which it is free
-- ARGV  1 name   the delay id as it is stored
--
-- Returns 1 if only one key had it, else 0; then nothing is changed.
-- Twice: the second run finds nothing to do.

local names, taken = KEYS[1], KEYS[2]
local name = ARGV[1]

local owner, free = redis.call('HGET', names, name), redis.call('ZSCORE', taken, name)
if (owner and free) or not (owner or free) then
  return 0
end
redis.call('HDEL', names, name)
redis.call('ZREM', taken, name)
return 1
