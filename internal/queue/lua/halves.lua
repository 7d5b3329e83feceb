-- halves: finds delay IDs that only one of their two keys has, both read at one time.
--
-- KEYS
--   names  hash: encoded delay ID -> its message
--   taken  zset: encoded delay ID -> ms at which it is free again
-- ARGV of each name
--   name  text: an encoded delay ID; one at least
--
-- Returns for each delay ID "names" or "taken" if only that key has it, else "".
-- Twice: it only reads.

local owners, reply = redis.call('HMGET', names, unpack(ARGV, first_name)), {}
for i = 1, name_count do
  --@each name i name
  local free = redis.call('ZSCORE', taken, name)
  reply[i] = owners[i] and not free and 'names' or free and not owners[i] and 'taken' or ''
end
return reply
