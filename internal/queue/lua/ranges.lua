-- ranges: reads several parts of a list at one time.
--
-- KEYS  1 key  list
-- ARGV  1 first  position of a part, as LRANGE takes it
--       2 last   position of that part
--       then more such pairs
--
-- Returns a list for each part.
-- Twice: it only reads.

local key = KEYS[1]

local reply = {}
for i = 1, #ARGV, 2 do
  reply[#reply + 1] = redis.call('LRANGE', key, ARGV[i], ARGV[i + 1])
end
return reply
