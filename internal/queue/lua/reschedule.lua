-- reschedule: gives a message that waits another due time: in pending, or in the retry of any group.
--
-- KEYS  1 meta        hash: layout, groups (the version of the group set)
--       2 messages    hash: id -> body
--       3 options     hash: id -> options, only of messages that have any
--       4 pending     zset: id -> due ms
--       5 names       hash: delay id -> id
--       6 taken       zset: delay id -> ms at which it is free
--       7 scheduler   hash: next, holder, standby, until
--       8 operation   string: what an earlier run of this call returned, expiring
--       then for each group of the set:
--         retry       zset: id -> due ms
-- ARGV  1 version     of the group set that KEYS were made from
--       2 by          "id" or "name"
--       3 message     its id, or its delay id as it is stored
--       4 due         ms from now, or "@" and an instant in ms; what is past is now
--       5 memory      how long the result is remembered, ms
--
-- What is due by that is moved by the scheduler, in order with all else. A delay id is taken until the new
-- due time, and for the message's window after it.
-- Returns "ok", "late" (the message is there and does not wait), "missing", "exists" (another message has
-- the delay id by now), or "stale" when the group set has changed; all but the first write nothing.
-- Twice: the second run finds the result of the first remembered, and returns it.

local meta, messages, options, pending = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local names, taken, scheduler, operation = KEYS[5], KEYS[6], KEYS[7], KEYS[8]
local version, by, id, spec, memory = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local groups = #KEYS - 8

--@use now due_of schedule

local before = redis.call('GET', operation)
if before then
  return before
end
if redis.call('HGET', meta, 'groups') ~= version then
  return 'stale'
end
if by == 'name' then
  local free = tonumber(redis.call('ZSCORE', taken, id) or nil)
  id = redis.call('HGET', names, id)
  if not id or not free or free <= now then
    return 'missing'
  end
end

-- Reading every key that will be written finds a key of a wrong type before anything is.
local own = redis.call('HGET', options, id)
local was = tonumber(redis.call('ZSCORE', pending, id) or nil)
local there = redis.call('HEXISTS', messages, id) == 1
redis.call('HLEN', scheduler)
redis.call('HLEN', names)
redis.call('ZCARD', taken)
local waits = {}
for g = 1, groups do
  if redis.call('ZSCORE', KEYS[8 + g], id) then
    waits[#waits + 1] = KEYS[8 + g]
  end
end
if by == 'name' and not (was and was > now) then
  return there and 'late' or 'missing'
end
if not was and #waits == 0 then
  return there and 'late' or 'missing'
end

local due = due_of(spec)
local score = string.format('%d', due)
local name = was and own and string.match(own, 'delay_id:(%S+)')
if name then
  local owner, free = redis.call('HGET', names, name), tonumber(redis.call('ZSCORE', taken, name) or nil)
  if owner and owner ~= id and free and free > now then
    return 'exists'
  end
end

-- The first write is a deletion, of nothing: at maxmemory it still works.
redis.call('ZREM', pending, '')
if was then
  redis.call('ZADD', pending, score, id)
  if name then
    local window = tonumber(string.match(own, 'window:(%d+)') or 0)
    redis.call('HSET', names, name, id)
    redis.call('ZADD', taken, string.format('%d', due + window), name)
  end
end
for _, retry in ipairs(waits) do
  redis.call('ZADD', retry, score, id)
end
if groups > 0 then
  schedule(due)
end
redis.call('SET', operation, 'ok', 'PX', memory)
return 'ok'
