-- scan: reads some of the ids in a hash or a zset, without their values.
--
-- KEYS  1 key     hash or zset: id -> value
-- ARGV  1 kind    "HSCAN" or "ZSCAN"
--       2 cursor  as it was returned; "0" begins
--       3 count   about how many ids
--       4 bytes   about how many bytes of values to read for them, because HSCAN copies each value
--
-- Each step reads about ten values, or one if they are large. So the call reads at most ten values
-- beyond the bytes. In a key that had many members and has few, most steps return nothing,
-- because the server may keep its table. So the call ends after a hundred steps, too.
-- Returns {cursor, id, ...}. The cursor is "0" at the end. A call may return no ids before the end.
-- A member that is there all the time is returned at least once.
-- Twice: it only reads.

local key = KEYS[1]
local kind, cursor, count, bytes = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

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
