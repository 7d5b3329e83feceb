-- schedules: reads the records of some recurring schedules, for a program that runs them.
--
-- KEYS  1 schedules  hash: schedule -> record; ":" -> text of the last change
--       2 programs   zset: address of a program that runs schedules -> ms until which it is valid
-- ARGV  1 address    of the program, which a resume wakes; "": it stays as it is
--       2 valid      ms for which the address is valid
--       3 ":"
--       then names of schedules: a thousand at most
--
-- Returns {now, amended, then name and record for each schedule}. amended is a text that differs if
-- any schedule was amended since. record is "" if there is none.
-- Twice: the second run does the same once more.

local schedules, programs = KEYS[1], KEYS[2]
local address, valid = ARGV[1], tonumber(ARGV[2])

--@use now

local records = redis.call('HMGET', schedules, unpack(ARGV, 3))
if address ~= '' then
  -- The first write deletes. After a deletion, a script may write at maxmemory too.
  redis.call('ZREMRANGEBYSCORE', programs, '-inf', string.format('%d', now))
  redis.call('ZADD', programs, string.format('%d', now + valid), address)
end
local reply = {string.format('%d', now), records[1] or ''}
for i = 2, #ARGV - 2 do
  reply[i * 2 - 1], reply[i * 2] = ARGV[i + 2], records[i] or ''
end
return reply
