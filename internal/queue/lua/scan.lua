-- scan: reads some of the ids that a hash or a zset has, without what it has of them.
--
-- KEYS  1 key     hash or zset: id -> something
-- ARGV  1 kind    "HSCAN" or "ZSCAN"
--       2 cursor  as it was returned; "0" begins
--       3 count   about how many
--
-- Returns {cursor, id, ...}: the cursor is "0" at the end. What is there all the time is returned at least
-- once.
-- Twice: it only reads.

local key = KEYS[1]
local kind, cursor, count = ARGV[1], ARGV[2], ARGV[3]

local found
if kind == 'ZSCAN' then
  found = redis.call('ZSCAN', key, cursor, 'COUNT', count)
else
  found = redis.call('HSCAN', key, cursor, 'COUNT', count)
end
local reply = {found[1]}
for i = 1, #found[2], 2 do
  reply[#reply + 1] = found[2][i]
end
return reply
