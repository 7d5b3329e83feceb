-- timetable: reads the record of a recurring schedule.
--
-- Uses     now, schedules
-- Defines  read_schedule(name)

-- Returns the record of a schedule as a table, or nil. The second result is the version, 0 if there
-- never was one: of a removed schedule only that is left. Occurrences that are due by now are left
-- out of waiting, and last is the latest of them. known has the instants in waiting as keys.
local function read_schedule(name)
  local text = redis.call('HGET', schedules, name) or ''
  local version, cursor, paused, run, asked, jitter, missed, counted, last, waiting, definition =
    string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (.*)$')
  if not version then
    return nil, tonumber(string.match(text, '^%d+') or 0)
  end
  local r = {version = tonumber(version), cursor = tonumber(cursor), paused = paused, run = run, asked = asked,
    jitter = tonumber(jitter), missed = tonumber(missed), counted = counted, last = tonumber(last),
    definition = definition, waiting = {}, known = {}}
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
