-- restore: brings messages back that were taken out of the topic while they waited, each under its
-- own id.
--
-- KEYS
--   meta       hash: layout, groups (the version of the group set)
--   messages   hash: id -> body
--   options    hash: id -> options, only of messages that have any
--   refs       hash: id -> number of groups that still need the body, if more than one
--   pending    zset: id -> due ms
--   names      hash: delay id -> id
--   taken      zset: delay id -> ms at which it is free
--   schedules  hash: recurring schedule -> record
--   scheduler  hash: next, holder, standby, until
--   counters   hash: counters of the topic
--   operation  string: the result of an earlier run of this call, expiring
--   kept       list: the ready list of the window, if the set has one
--   restored   zset: id -> ms at which its mark ends
-- KEYS of each group
--   retry             zset: id -> due ms
--   dead              zset: id -> ms at which it died
--   deliveries        hash: id -> "count flag delayed_for reason"
--   unack             zset: id -> lease deadline ms
--   restored_retries  zset: id -> ms at which its mark ends
-- ARGV
--   version  text: of the group set that KEYS were made from
--   memory   text: ms for which the result is remembered
--   dry      flag: only says what it would do
-- ARGV of each message
--   id      text: 100 at most, each once
--   body    text:
--   own     text: its options; "" for none
--   due     text: ms at which it is due
--   free    number: ms at which its delay id is free, if it had that; else ""
--   at      number: of the group in which it waits for a retry; 0 if it waits for its due time
--   record  text: its record in that group; "" for none
--
-- A due time in the past stays so, because the lateness of the message counts from it. A retry
-- comes back in its group alone. Other groups may have the message.
-- Returns {"stale"} when the group set has changed, else
-- REPLY
--   ok        text: "ok"
--   verdicts  text: a letter for each message: "c" it came back, "h" it is here already, or is
--             marked and some group has it in ready, "e" it was marked, so it came back before and
--             has ended since, "n" another message has the delay id, "s" its recurring schedule has
--             gone on without it, "b" some group has it in ready, and nobody knows which
-- Twice: the second run returns the remembered result of the first.

--@use now post grace schedule each put id_length in_window timetable movable restored

local before = redis.call('GET', operation)
if before then
  return {'ok', before}
end
if redis.call('HGET', meta, 'groups') ~= version then
  return {'stale'}
end

-- Read every key that is written later: one of a wrong type is found before the first write.
-- messages need not be read, because it is read for each message.
redis.call('HLEN', options)
redis.call('HLEN', refs)
redis.call('ZCARD', pending)
redis.call('HLEN', names)
redis.call('ZCARD', taken)
redis.call('HLEN', counters)
redis.call('ZCARD', restored)
for g = 1, group_count do
  --@each group g retry dead deliveries unack restored_retries
  redis.call('ZCARD', retry)
  redis.call('ZCARD', dead)
  redis.call('HLEN', deliveries)
  redis.call('ZCARD', unack)
  redis.call('ZCARD', restored_retries)
end

local ids = {}
for i = 1, message_count do
  --@each message i id
  ids[i] = id
end
local has = in_window(kept, ids)
local named = {} -- delay ids that this call takes

-- Tells whether a group has a message in another state than ready.
local function is_in(g, id)
  --@each group g retry dead unack
  return (redis.call('ZSCORE', retry, id) or redis.call('ZSCORE', dead, id) or redis.call('ZSCORE', unack, id)) and true or false
end

-- Returns the id of the message that has a delay id, or nil.
local function owner_of(delay_id)
  local free_at = tonumber(redis.call('ZSCORE', taken, delay_id) or nil)
  return named[delay_id] or free_at and free_at > now and redis.call('HGET', names, delay_id) or nil
end

-- Tells whether a message is an occurrence that its schedule has taken back since.
local function is_undone(delay_id)
  local schedule_name, instant = string.match(delay_id, '^(.*)%%40(%d+)$')
  if not schedule_name then return false end
  local r, version = read_schedule(schedule_name)
  if not r then
    return version > 0 -- it was removed
  end
  return tonumber(instant) + r.jitter > now and not r.known[instant]
end

local function verdict_of(id, marks, delay_id, at, there)
  if at == 0 and there or at > 0 and (redis.call('ZSCORE', pending, id) or is_in(at, id)) then
    return 'h'
  end
  local is_ready = false -- in some group
  if at > 0 and there then
    local places = 0
    for g = 1, group_count do
      places = places + (is_in(g, id) and 1 or 0)
    end
    is_ready = groups_of(id, has[id]) ~= places
  end
  if tonumber(redis.call('ZSCORE', marks, id) or 0) > now then
    return is_ready and 'h' or 'e'
  end
  if is_ready then
    return 'b'
  end
  if delay_id and (owner_of(delay_id) or id) ~= id then
    return 'n'
  end
  return at == 0 and delay_id and is_undone(delay_id) and 's' or 'c'
end

local verdicts, bodies, settings, coming = {}, {}, {}, {}
for i = 1, message_count do
  --@each message i id body own due free at
  local marks = restored
  if at > 0 then
    --@each group at restored_retries
    marks = restored_retries
  end
  local delay_id = string.match(own, 'delay_id:(%S+)')
  local ends = free or 0
  if delay_id and at == 0 then
    ends = math.max(ends, tonumber(due) + (tonumber(string.match(own, 'window:(%d+)') or nil) or 0))
  elseif ends <= now then
    delay_id = nil -- a retry does not need it
  end
  local there = redis.call('HEXISTS', messages, id) == 1
  verdicts[i] = verdict_of(id, marks, delay_id, at, there)
  if verdicts[i] == 'c' then
    coming[#coming + 1] = {i = i, marks = marks, delay_id = delay_id, ends = ends, there = there}
    if delay_id then
      named[delay_id] = id
    end
    if not there then
      bodies[#bodies + 1], bodies[#bodies + 2] = id, body
      if own ~= '' then
        settings[#settings + 1], settings[#settings + 2] = id, own
      end
    end
  end
end
verdicts = table.concat(verdicts)
if dry then
  return {'ok', verdicts}
end

-- The first write is an addition. So at maxmemory nothing comes back.
put(messages, bodies, 1, #bodies)
put(options, settings, 1, #settings)
local soonest
local function comes(ms)
  soonest = math.min(soonest or ms, ms)
end
local marked = {} -- keys
for _, m in ipairs(coming) do
  local i = m.i
  --@each message i id due at record
  if at == 0 then
    redis.call('ZADD', pending, due, id)
  else
    --@each group at retry deliveries
    redis.call('ZADD', retry, due, id)
    if record ~= '' then
      redis.call('HSET', deliveries, id, record)
    end
    if m.there then
      redis.call('HSET', refs, id, tonumber(redis.call('HGET', refs, id) or 1) + 1)
    end
  end
  comes(tonumber(due))
  if m.delay_id and m.ends > now then
    redis.call('HSET', names, m.delay_id, id)
    redis.call('ZADD', taken, string.format('%d', m.ends), m.delay_id)
    comes(m.ends)
  end
  mark(m.marks, id, tonumber(due))
  marked[m.marks] = true
end
for marks in pairs(marked) do
  bound(marks)
end
if #bodies > 0 then
  redis.call('HINCRBY', counters, 'published', #bodies / 2)
end
if soonest and group_count > 0 then
  schedule(math.max(soonest, now))
end
redis.call('SET', operation, verdicts, 'PX', memory)
return {'ok', verdicts}
