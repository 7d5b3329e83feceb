-- ranges: reads several parts of a list at one time.
--
-- KEYS  1 key  list
-- ARGV  first and last position of each part, as LRANGE takes them
--
-- Returns a list for each part.
-- Twice: it only reads.

local key = KEYS[1]

local reply = {}
for i = 1, #ARGV, 2 do
  reply[#reply + 1] = redis.call('LRANGE', key, ARGV[i], ARGV[i + 1])
end
return reply
