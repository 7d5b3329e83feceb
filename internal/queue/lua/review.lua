-- review: reads some records of recurring schedules, with what comes next.
--
-- KEYS  1 schedules  hash: schedule -> record; ":" -> text of the last change
--       2 taken      zset: delay id -> ms at which it is free
-- ARGV  1 cursor     of HSCAN; "0" begins
--
-- Returns {cursor, now, then name, record, next, last for each schedule}. cursor is "0" at the end.
-- next is when the schedule's next occurrence is due, in ms, or "" if none waits. last is the
-- instant of the last one that was due, or "" if there was none. A schedule may come twice.
-- Twice: it only reads.

local schedules, taken = KEYS[1], KEYS[2]

--@use now timetable

local found = redis.call('HSCAN', schedules, ARGV[1], 'COUNT', 40)
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
