-- amend_timetable: writes the record of a recurring schedule, as timetable reads it.
--
-- Uses     schedules
-- Defines  write_schedule(name, r)

local function write_schedule(name, r)
  redis.call('HSET', schedules, name, string.format('%d %d %s %s %s %d %d %s %d ', r.version, r.cursor, r.paused,
    r.run, r.asked, r.jitter, r.missed, r.counted, r.last) .. (r.waiting[1] and table.concat(r.waiting, ',') or '-') .. ' ' .. r.pause .. ' ' ..
    r.failure .. ' ' .. r.definition)
end
