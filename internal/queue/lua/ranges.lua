-- ranges: reads several parts of a list at one time.
--
-- KEYS
--   key  list:
-- ARGV of each part
--   first  text: position of a part, as LRANGE takes it
--   last   text: position of that part
--
-- Returns a list for each part.
-- Twice: it only reads.

local reply = {}
for p = 1, part_count do
  --@each part p first last
  reply[p] = redis.call('LRANGE', key, first, last)
end
return reply
