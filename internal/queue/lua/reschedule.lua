-- reschedule: gives a message that waits, in pending or for a retry, another due time.
--
-- KEYS
--   meta       hash: layout, groups (the version of the group set)
--   messages   hash: id -> body
--   options    hash: id -> options, only of messages that have any
--   pending    zset: id -> due ms
--   names      hash: delay id -> id
--   taken      zset: delay id -> ms at which it is free
--   scheduler  hash: next, holder, standby, until
--   operation  string: the result of an earlier run of this call, expiring
--   restored   zset: id -> ms at which its mark ends
-- KEYS of each group
--   retry             zset: id -> due ms
--   deliveries        hash: id -> "count flag delayed_for reason"
--   restored_retries  zset: id -> ms at which its mark ends
-- ARGV
--   version  text: of the group set that KEYS were made from
--   by       text: "id" or "name"
--   id       text: its id, or its delay id as it is stored
--   spec     text: ms from now, or "@" and an instant in ms; an instant in the past is now
--   memory   text: ms for which the result is remembered
--   of       text: id of the message that expires is of; "" does not look at it
--   expires  number: ms from which on it is too late for the message; "" for never
--   at       text: due ms at which it must wait, in pending or in a group; "first" for any in
--            pending; "" for any
--   record   text: its record in a group in which it must wait for a retry; "" for any
--
-- The scheduler moves a message that is due by that, in order with all others. The delay id is
-- taken until the new due time, and for the message's window after it. An expiry does not count in
-- a group that has the message as a requeued one.
-- Returns "ok", "late" if the message does not wait any more (it is there, or it has a delay id
-- whose window lasts), "missing", "exists" if another message has the delay id, "expires" if the
-- message would be due when it is too late for it, "other" if expires is of another message than
-- the one that has the delay id, "moved" if it does not wait as at and record say, or "stale" when
-- the group set has changed.
-- Only "ok" means that something was written.
-- Twice: the second run returns the remembered result of the first.

--@use now due_of post grace schedule restored

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
local was = tonumber(redis.call('ZSCORE', pending, id) or nil)
local there = redis.call('HEXISTS', messages, id) == 1
redis.call('HLEN', names)
redis.call('ZCARD', taken)
redis.call('ZCARD', restored)
local waits, ends = {}, was -- whether the expiry counts
local found = at == '' or was and (at == 'first' or was == tonumber(at))
local same = record == ''
for g = 1, group_count do
  --@each group g retry deliveries restored_retries
  redis.call('ZCARD', restored_retries)
  local record_now = redis.call('HGET', deliveries, id) or ''
  local again = tonumber(redis.call('ZSCORE', retry, id) or nil)
  if again then
    waits[#waits + 1] = g
    found = found or again == tonumber(at)
    same = same or record_now == record
    ends = ends or string.match(record_now, '^%d+ (%S+)') ~= 'r'
  end
end
if by == 'name' and not (was and was > now) then
  return 'late' -- it was due: its delay id is taken for the window alone
end
if not was and #waits == 0 then
  return there and 'late' or 'missing'
end
if not found or not same then
  return 'moved'
end

if by == 'name' and of ~= '' and of ~= id then
  return 'other'
end

local due = due_of(spec)
if ends and expires and due >= expires then
  return 'expires'
end
local score = string.format('%d', due)
local name = was and own and string.match(own, 'delay_id:(%S+)')
if name then
  local owner, free = redis.call('HGET', names, name), tonumber(redis.call('ZSCORE', taken, name) or nil)
  if owner and owner ~= id and free and free > now then
    return 'exists'
  end
end

-- The first write deletes nothing. After a deletion, a script may write at maxmemory too.
redis.call('ZREM', pending, '')
if was then
  redis.call('ZADD', pending, score, id)
  follow(restored, id, due)
  if name then
    local window = tonumber(string.match(own, 'window:(%d+)') or 0)
    redis.call('HSET', names, name, id)
    redis.call('ZADD', taken, string.format('%d', due + window), name)
  end
end
for _, g in ipairs(waits) do
  --@each group g retry restored_retries
  redis.call('ZADD', retry, score, id)
  follow(restored_retries, id, due)
end
if group_count > 0 then
  schedule(due)
end
redis.call('SET', operation, 'ok', 'PX', memory)
return 'ok'
