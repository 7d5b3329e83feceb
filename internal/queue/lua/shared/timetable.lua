-- timetable: reads the record of a recurring schedule.
--
-- Uses     now, schedules
-- Defines  read_schedule(name)

-- Returns the record of a schedule as a table, or nil. The second result is the version, 0 if there
-- never was one: of a removed schedule only that is left. Occurrences that are due by now are left
-- out of waiting, and last is the latest of them. known has the instants in waiting as keys. A
-- pause that is over is left out: its end is in cursor. ends is when the pause ends, 0 for no end.
local function read_schedule(name)
  local text = redis.call('HGET', schedules, name) or ''
  local version, cursor, paused, run, asked, jitter, missed, counted, last, waiting, pause, failure, definition =
    string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+) (%S+) (.*)$')
  if not version then
    return nil, tonumber(string.match(text, '^%d+') or 0)
  end
  local r = {version = tonumber(version), cursor = tonumber(cursor), paused = paused, run = run, asked = asked,
    jitter = tonumber(jitter), missed = tonumber(missed), counted = counted, last = tonumber(last),
    pause = pause, failure = failure, definition = definition, waiting = {}, known = {}}
  r.ends = tonumber(string.match(pause, '^%d+') or 0)
  if r.ends > 0 and r.ends <= now then
    r.paused, r.pause, r.ends = '0', '-', 0
  end
  for at in string.gmatch(waiting, '%d+') do
    if tonumber(at) + r.jitter > now then
      r.waiting[#r.waiting + 1] = at
      r.known[at] = true
    else
      r.last = math.max(r.last, tonumber(at))
    end
  end
  return r, r.version
end
