-- schedules: reads the records of recurring schedules.
--
-- KEYS  1 schedules  hash: schedule -> record
--       2 taken      zset: delay id -> ms at which it is free
-- ARGV  1 cursor     of HSCAN, "0" begins; "" for the schedules that are named
--       then names of schedules, if cursor is "": a thousand at most
--
-- Returns {now, cursor, then name, record, next for each schedule}. cursor is "0" at the end. For
-- named schedules it is a text that differs if any schedule was amended since. record is "" if there
-- is none. next is when the schedule's next occurrence is due, in ms, or "" if none waits; it is
-- always "" for named schedules.
-- Twice: it only reads.

local schedules, taken = KEYS[1], KEYS[2]
local cursor = ARGV[1]

--@use now timetable

local reply = {string.format('%d', now), ''}
if cursor == '' then
  local records = redis.call('HMGET', schedules, ':', unpack(ARGV, 2))
  reply[2] = records[1] or ''
  for i = 2, #ARGV do
    reply[#reply + 1] = ARGV[i]
    reply[#reply + 1] = records[i] or ''
    reply[#reply + 1] = ''
  end
  return reply
end
local found = redis.call('HSCAN', schedules, cursor, 'COUNT', 100)
reply[2] = found[1]
for i = 1, #found[2], 2 do
  local name, text, next_due = found[2][i], found[2][i + 1], ''
  local r = read_schedule(name)
  for _, at in ipairs(r and r.waiting or {}) do
    local due = redis.call('ZSCORE', taken, name .. '%40' .. at)
    if due and tonumber(due) > now then
      next_due = due
      break
    end
  end
  if name ~= ':' then
    reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = name, text, next_due
  end
end
return reply
