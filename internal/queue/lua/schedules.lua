-- schedules: reads the records of some recurring schedules, for a program that runs them.
--
-- KEYS
--   schedules  hash: schedule -> record; ":" -> text of the last change
--   programs   zset: address of a program that runs schedules -> ms until which it is valid
-- ARGV
--   address  text: of the program, which a resume wakes; "": it stays as it is
--   valid    number: ms for which the address is valid
-- ARGV of each schedule
--   name  text: ":", and then names of schedules: a thousand at most
--
-- Returns
-- REPLY
--   now      text: the server's time in ms
--   amended  text: differs if any schedule was amended since; it is the record of ":"
-- REPLY of each schedule
--   name    text: as it was given, without ":"
--   record  text: "" if there is none
-- Twice: the second run does the same once more.

--@use now

local records = redis.call('HMGET', schedules, unpack(ARGV, first_schedule))
if address ~= '' then
  -- The first write deletes. After a deletion, a script may write at maxmemory too.
  redis.call('ZREMRANGEBYSCORE', programs, '-inf', string.format('%d', now))
  redis.call('ZADD', programs, string.format('%d', now + valid), address)
end
local reply = {string.format('%d', now), records[1] or ''}
for i = 2, schedule_count do
  --@each schedule i name
  reply[i * 2 - 1], reply[i * 2] = name, records[i] or ''
end
return reply
