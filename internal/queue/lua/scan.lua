-- scan: reads some of the ids that a hash or a zset has, without what it has of them.
--
-- KEYS  1 key     hash or zset: id -> something
-- ARGV  1 kind    "HSCAN" or "ZSCAN"
--       2 cursor  as it was returned; "0" begins
--       3 count   about how many
--       4 bytes   of values to go through for them, about: HSCAN copies each value with its id
--
-- It goes ten at a time, and one at a time where they are large, so that it goes through no more than ten values
-- beyond the bytes, of which nine are no larger than a tenth of them on average. In a key that had many and has few, most
-- times bring nothing, as the server may keep its room for many: so it ends after a hundred of them, too.
-- Returns {cursor, id, ...}: the cursor is "0" at the end, and there may be no ids before. What is there all the time is
-- returned at least once.
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
