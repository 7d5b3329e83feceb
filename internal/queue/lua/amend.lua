-- amend: changes a recurring schedule, and takes back its occurrences that wait.
--
-- KEYS
--   meta       hash: layout, groups (the version of the group set)
--   schedules  hash: schedule -> record; ":" -> text of the last change
--   messages   hash: id -> body
--   options    hash: id -> options, only of messages that have any
--   pending    zset: id -> due ms
--   names      hash: delay id -> id
--   taken      zset: delay id -> ms at which it is free
--   operation  string: set by an earlier run of this call, expiring
--   programs   zset: address of a program that runs schedules -> ms until which it is valid
--   counters   hash: counters of the topic
--   groups     hash: group -> options
--   ended      stream: a line of each message that ended before a group had it
-- CONSTANTS
--   ahead = 60000  ms by which what was noted may be after now; a failover shifts the clock
-- ARGV
--   version     text: of the group set that KEYS were made from
--   what        text: "put", "pause", "resume", "run", "remove", "ask", "answer", "return" or
--               "fail"
--   name        text: of the schedule
--   memory      text: ms for which a "run", "pause" or "fail" is remembered
--   seen        number: version that the caller has seen, 0 for none; for "put", "ask", "answer",
--               "return" and "fail"
--   definition  text: of the schedule, for "put"
--   jitter      number: ms, for "put"
--   first       number: ms before which there is no occurrence, for "put"
--   recorded    flag: the topic may have groups with a history, which tells what is taken back
--   known       number: ms of an instant whose occurrence was due when the caller looked, for
--               "return"
--   lasts       number: ms from now to the end of the pause, 0 if only "resume" ends it, for
--               "pause"
--   note        text: "<by>,<why>" for "pause", "<host>,<error>" for "fail", percent-encoded
--
-- "put" gives the schedule another definition: its version goes up, and it counts from now on. A
-- cursor of the past stays, so that what the schedule has missed is not forgotten. "pause",
-- "remove" and such a "put" take back all occurrences that wait. An occurrence that was cancelled
-- by hand stays in the record, so that it is not published again. "run" asks for one occurrence
-- now. "ask" asks the programs of the record's version to show that they live, which is what
-- "answer" does. It asks anew if the last "ask" was more than a minute after now. "return" is for a
-- schedule whose last occurrence was due more than a minute after now, because the server's clock
-- was ahead then. It takes back what waits, and the schedule counts from now on, so that it does
-- not rest until that time. It does nothing otherwise. "fail" notes that a program could not
-- publish an occurrence. "resume" and "run" wake the programs. Each change but that of "fail" is
-- noted in the field ":", so that programs need not read all records again and again.
-- A "pause" with an end moves the cursor to that end. So programs publish what comes after it ahead
-- of time, as ever, and nobody has to end the pause.
-- Returns
-- REPLY
--   outcome     text: "stale" when the group set has changed, "missing" if there is no such
--               schedule, "changed" if its version is not the one that was seen, else "ok"
--   now         text: the server's time in ms
--   record      text: "" if there is none
--   taken_back  number: occurrences that waited
-- Twice: "put", "remove", "ask" and "answer" find another version, or do the same once more. "run",
-- "pause" and "fail" are remembered. A second "resume" or "return" finds done what the first did.


--@use now post timetable amend_timetable each group_options origin history whole

local ms = string.format('%d', now)
if redis.call('HGET', meta, 'groups') ~= version then
  return {'stale', ms, '', 0}
end
local r, last = read_schedule(name)
if r and what == 'put' and r.definition == definition then
  return {'ok', ms, redis.call('HGET', schedules, name), 0}
end
if (what == 'put' or what == 'ask' or what == 'answer' or what == 'return' or what == 'fail') and last ~= seen then
  return {'changed', ms, redis.call('HGET', schedules, name) or '', 0}
end
if not r and what ~= 'put' then
  return {'missing', ms, '', 0}
end

local latest = r and math.max(r.last, known)
if what == 'return' and latest + r.jitter <= now + ahead then
  return {'ok', ms, redis.call('HGET', schedules, name), 0}
end

-- Read every key that is written later: one of a wrong type is found before the first write.
redis.call('HLEN', messages)
redis.call('HLEN', options)
redis.call('HLEN', names)
redis.call('ZCARD', taken)
redis.call('ZCARD', pending)
redis.call('ZCARD', programs)
redis.call('HLEN', counters)
local repeated = redis.call('GET', operation)
local changes = tonumber(string.match(redis.call('HGET', schedules, ':') or '', '%d+$') or 0)

if repeated and (what == 'pause' or what == 'fail') then
  return {'ok', ms, redis.call('HGET', schedules, name), 0}
end
local ends = what == 'resume' and r and r.ends > 0 -- programs publish already what comes after that pause

local ids, delay_ids = {}, {}
local left = {} -- instants whose occurrences were cancelled by hand
if r and (what == 'put' or what == 'pause' or what == 'remove' or what == 'return' or ends) then
  for _, at in ipairs(r.waiting) do
    local delay_id = name .. '%40' .. at
    local id = redis.call('HGET', names, delay_id)
    if not id then
      if what ~= 'return' or tonumber(at) > latest then -- the others were delivered meanwhile
        left[#left + 1] = at
      end
    elseif tonumber(redis.call('ZSCORE', pending, id) or 0) > now then
      ids[#ids + 1], delay_ids[#delay_ids + 1] = id, delay_id
    end
  end
  r.waiting = left
  r.cursor = math.min(r.cursor, now - r.jitter)
end

if what == 'put' then
  r = r or {cursor = now, paused = '0', run = '0', missed = 0, counted = '0', last = 0, waiting = {},
    ends = 0, pause = '-', failure = '-'}
  r.version, r.cursor, r.asked = last + 1, math.max(r.cursor, first), '0'
  r.definition, r.jitter = definition, jitter
elseif what == 'pause' then
  r.paused, r.ends = r.paused == '0' and ms or r.paused, lasts > 0 and now + lasts or 0
  r.pause = string.format('%d', r.ends) .. ',' .. note
elseif what == 'resume' and r.paused ~= '0' then
  r.paused, r.pause, r.ends, r.cursor = '0', '-', 0, math.max(r.cursor, now - r.jitter)
elseif what == 'run' and not repeated and r.run == '0' then
  r.run = ms
elseif what == 'ask' and (r.asked == '0' or tonumber(r.asked) > now + ahead) then
  r.asked = ms
elseif what == 'answer' then
  r.asked = '0'
elseif what == 'return' then
  r.last = 0
elseif what == 'fail' then
  local failures = tonumber(string.match(r.failure, '^%d+,(%d+)') or 0) + 1
  r.failure = ms .. ',' .. string.format('%d', failures) .. ',' .. note
end
if r and r.ends > 0 then
  r.cursor = math.max(r.cursor, r.ends - r.jitter)
end

local bounds = recorded and #ids > 0 and whole_bounds()
local record = bounds and histories()
local lines = {} -- of occurrences that are taken back
if record then
  record.expect(ended)
  lines = record.lines_of(ids)
  for _, l in ipairs(lines) do
    l.due = redis.call('ZSCORE', pending, l.id)
  end
end

-- The first write deletes nothing. After a deletion, a script may write at maxmemory too.
redis.call('HDEL', schedules, '')
each('ZREM', pending, ids, 1, #ids)
each('HDEL', messages, ids, 1, #ids)
each('HDEL', options, ids, 1, #ids)
each('HDEL', names, delay_ids, 1, #delay_ids)
each('ZREM', taken, delay_ids, 1, #delay_ids)
if what == 'remove' then
  redis.call('HSET', schedules, name, string.format('%d', last + 1))
else
  write_schedule(name, r)
end
if what ~= 'fail' then
  -- With the time, because a counter could come back after a loss of data.
  redis.call('HSET', schedules, ':', ms .. '.' .. string.format('%d', changes + 1))
end
if what == 'run' or what == 'pause' or what == 'fail' then
  redis.call('SET', operation, 'ok', 'PX', memory)
end
if what == 'return' then
  redis.call('HINCRBY', counters, 'returned', 1)
  redis.call('HSET', counters, 'returned_at', ms)
end
if what == 'resume' or what == 'run' then
  for _, address in ipairs(redis.call('ZRANGEBYSCORE', programs, '(' .. ms, '+inf', 'LIMIT', 0, 100)) do
    post(address)
  end
end
if record then
  record.keep(ended, bounds, 'cancelled', lines, counters)
end
return {'ok', ms, redis.call('HGET', schedules, name), #ids}
