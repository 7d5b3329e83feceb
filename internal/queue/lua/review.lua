-- review: reads some records of recurring schedules, with what comes next.
--
-- KEYS
--   schedules  hash: schedule -> record; ":" -> text of the last change
--   taken      zset: delay id -> ms at which it is free
-- ARGV
--   cursor  text: of HSCAN; "0" begins
--
-- A schedule may come twice.
-- Returns
-- REPLY
--   next_cursor  text: "0" at the end
--   now          text: the server's time in ms
-- REPLY of each schedule
--   name    text:
--   record  text:
--   next    text: when its next occurrence is due, in ms, or "" if none waits
--   last    text: the instant of the last one that was due, or "" if there was none
-- Twice: it only reads.

--@use now timetable

local found = redis.call('HSCAN', schedules, cursor, 'COUNT', 40)
local reply = {found[1], string.format('%d', now)}
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
    local last = r and r.last > 0 and string.format('%d', r.last) or ''
    reply[#reply + 1], reply[#reply + 2], reply[#reply + 3], reply[#reply + 4] = name, text, next_due, last
  end
end
return reply
