-- schedules: reads the records of some recurring schedules.
--
-- KEYS  1 schedules  hash: schedule -> record; ":" -> text of the last change
-- ARGV  1 ":"
--       then names of schedules: a thousand at most
--
-- Returns {now, amended, then name and record for each schedule}. amended is a text that differs if
-- any schedule was amended since. record is "" if there is none.
-- Twice: it only reads.

local schedules = KEYS[1]

--@use now

local records = redis.call('HMGET', schedules, unpack(ARGV))
local reply = {string.format('%d', now), records[1] or ''}
for i = 2, #ARGV do
  reply[i * 2 - 1], reply[i * 2] = ARGV[i], records[i] or ''
end
return reply
