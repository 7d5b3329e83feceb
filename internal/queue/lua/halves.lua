-- halves: finds delay IDs that only one of their two keys has, both read at one time.
--
-- KEYS  1 names  hash: encoded delay ID -> its message
--       2 taken  zset: encoded delay ID -> ms at which it is free again
-- ARGV  encoded delay IDs, at least one
--
-- Returns for each delay ID "names" or "taken" if only that key has it, else "".
-- Twice: it only reads.

local names, taken = KEYS[1], KEYS[2]

local owners, reply = redis.call('HMGET', names, unpack(ARGV)), {}
for i, name in ipairs(ARGV) do
  local free = redis.call('ZSCORE', taken, name)
  reply[i] = owners[i] and not free and 'names' or free and not owners[i] and 'taken' or ''
end
return reply
