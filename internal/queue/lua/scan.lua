-- scan: reads some of the ids in a hash or a zset, without their values.
--
-- KEYS
--   key  key: hash or zset: id -> value
-- ARGV
--   kind    text: "HSCAN" or "ZSCAN"
--   cursor  text: as it was returned; "0" begins
--   count   number: about how many ids
--   bytes   number: about how many bytes of values to read for them, because HSCAN copies each
--           value
--
-- Each step reads about ten values, or one if they are large. So the call reads at most ten values
-- beyond the bytes. In a key that had many members and has few, most steps return nothing,
-- because the server may keep its table. So the call ends after a hundred steps, too.
-- Returns
-- REPLY
--   next  text: cursor; "0" at the end
-- REPLY of each member
--   id  text: none may come before the end
-- A member that is there all the time is returned at least once.
-- Twice: it only reads.

local reply, size, some, times = {cursor}, 0, 1, 0
repeat
  local found
  if kind == 'ZSCAN' then
    found = redis.call('ZSCAN', key, reply[1], 'COUNT', some)
  else
    found = redis.call('HSCAN', key, reply[1], 'COUNT', some)
  end
  reply[1] = found[1]
  for i = 1, #found[2], 2 do
    reply[#reply + 1] = found[2][i]
    size = size + #found[2][i + 1]
  end
  some = size / #reply > bytes / 10 and 1 or 10
  times = times + 1
until reply[1] == '0' or #reply > count or size >= bytes or times >= 100
return reply
