-- cancel: takes back a message that waits, in pending or for a retry.
--
-- KEYS  1 meta        hash: layout, groups (the version of the group set)
--       2 messages    hash: id -> body
--       3 options     hash: id -> options, only of messages that have any
--       4 refs        hash: id -> number of groups that still need the body, if more than one
--       5 pending     zset: id -> due ms
--       6 names       hash: delay id -> id
--       7 taken       zset: delay id -> ms at which it is free
--       8 operation   string: the result of an earlier run of this call, expiring
--       then for each group of the set:
--         retry       zset: id -> due ms
--         deliveries  hash: id -> "count flag delayed_for reason"
--       then only if the set has a window:
--         kept        ready list of the window
-- ARGV  1 version     of the group set that KEYS were made from
--       2 by          "id" or "name"
--       3 message     its id, or its delay id as it is stored
--       4 memory      ms for which the result is remembered
--
-- A message that waits for a retry in some groups only is taken from those groups and kept for the
-- others. When the call takes the message from its last group, its delay id becomes free, even if
-- the window of that has not ended.
-- Returns "ok", "late" (the message does not wait any more: it is there, or it has a delay id whose
-- window lasts), "missing", or "stale" when the group set has changed. Only "ok" means that
-- something was written.
-- Twice: the second run returns the remembered result of the first.

local meta, messages, options, refs, pending = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local names, taken, operation = KEYS[6], KEYS[7], KEYS[8]
local version, by, id, memory = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local groups = math.floor((#KEYS - 8) / 2)
local kept = KEYS[9 + groups * 2]

--@use now id_length in_window

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

-- Read every key that is written later: one of a wrong type is found before the first write.
local own = redis.call('HGET', options, id)
local due = tonumber(redis.call('ZSCORE', pending, id) or nil)
local left = tonumber(redis.call('HGET', refs, id) or 1)
local there = redis.call('HEXISTS', messages, id) == 1
redis.call('HLEN', names)
redis.call('ZCARD', taken)
local waits = {}
for g = 1, groups do
  local retry, deliveries = KEYS[7 + g * 2], KEYS[8 + g * 2]
  redis.call('HLEN', deliveries)
  if redis.call('ZSCORE', retry, id) then
    waits[#waits + 1] = g
  end
end
if by == 'name' and not (due and due > now) then
  return 'late' -- it was due: its delay id is taken for the window alone
end
if not due and #waits == 0 then
  return there and 'late' or 'missing'
end
local held = due and 0 or in_window(kept, {id})[id]

-- The first write is a deletion: after one, a script may write at maxmemory too.
if due then
  redis.call('ZREM', pending, id)
end
for _, g in ipairs(waits) do
  redis.call('ZREM', KEYS[7 + g * 2], id)
  redis.call('HDEL', KEYS[8 + g * 2], id)
end
if due or left - held <= #waits then
  local name = own and string.match(own, 'delay_id:(%S+)')
  if name and redis.call('HGET', names, name) == id then
    redis.call('HDEL', names, name)
    redis.call('ZREM', taken, name)
  end
end
if due or left <= #waits then
  redis.call('HDEL', refs, id)
  redis.call('HDEL', messages, id)
  redis.call('HDEL', options, id)
else
  redis.call('HSET', refs, id, left - #waits)
end
if held > 0 then
  redis.call('RPUSH', kept, nobody .. ':' .. id)
end
redis.call('SET', operation, 'ok', 'PX', memory)
return 'ok'
