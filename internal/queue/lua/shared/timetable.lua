-- timetable: reads and writes the record of a recurring schedule.
--
-- Uses     now, schedules
-- Defines  read_schedule(name), write_schedule(name, r)

-- Returns the record of a schedule as a table, or nil. The second result is the version, 0 if there
-- never was one: of a removed schedule only that is left. Occurrences that are due by now are left
-- out of waiting. known has the instants in waiting as keys.
local function read_schedule(name)
  local text = redis.call('HGET', schedules, name) or ''
  local version, cursor, paused, run, asked, jitter, missed, waiting, definition =
    string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (.*)$')
  if not version then
    return nil, tonumber(string.match(text, '^%d+') or 0)
  end
  local r = {version = tonumber(version), cursor = tonumber(cursor), paused = paused, run = run, asked = asked,
    jitter = tonumber(jitter), missed = tonumber(missed), waiting = {}, known = {}, definition = definition}
  for at in string.gmatch(waiting, '%d+') do
    if tonumber(at) + r.jitter > now then
      r.waiting[#r.waiting + 1] = at
      r.known[at] = true
    end
  end
  return r, r.version
end

local function write_schedule(name, r)
  redis.call('HSET', schedules, name, string.format('%d %d %s %s %s %d %d ', r.version, r.cursor, r.paused, r.run,
    r.asked, r.jitter, r.missed) .. (r.waiting[1] and table.concat(r.waiting, ',') or '-') .. ' ' .. r.definition)
end
