-- cancel: takes back a message that waits, in pending or for a retry.
--
-- KEYS
--   meta       hash: layout, groups (the version of the group set)
--   messages   hash: id -> body
--   options    hash: id -> options, only of messages that have any
--   refs       hash: id -> number of groups that still need the body, if more than one
--   pending    zset: id -> due ms
--   names      hash: delay id -> id
--   taken      zset: delay id -> ms at which it is free
--   operation  string: the result of an earlier run of this call, expiring
--   kept       list: the ready list of the window, if the set has one
--   groups     hash: group -> options
--   counters   hash: counters of the topic
--   ended      stream: a line of each message that ended before a group had it
--   restored   zset: id -> ms at which its mark ends
-- KEYS of each group
--   retry             zset: id -> due ms
--   deliveries        hash: id -> "count flag delayed_for reason"
--   history           stream: a line of each message that ended
--   restored_retries  zset: id -> ms at which its mark ends
-- ARGV
--   version   text: of the group set that KEYS were made from
--   by        text: "id" or "name"
--   id        text: its id, or its delay id as it is stored
--   memory    text: ms for which the result is remembered
--   recorded  flag: the topic may have groups with a history, which tells that it was cancelled
--   at        number: due ms at which it must wait, in pending or in a group; "" for any
-- ARGV of each group
--   name  text:
--
-- A message that waits for a retry in some groups only is taken from those groups and kept for the
-- others. When the call takes the message from its last group, its delay id becomes free, even if
-- the window of that has not ended. restore may bring back what was taken.
-- Returns "ok", "late" (the message does not wait any more: it is there, or it has a delay id whose
-- window lasts), "missing", "moved" if it does not wait at the due time that was given, or "stale"
-- when the group set has changed. Only "ok" means that something was written.
-- Twice: the second run returns the remembered result of the first.


--@use now id_length in_window group_options origin history whole

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
redis.call('ZCARD', restored)
local record = recorded and histories()
local waits, found = {}, not at or due == at
for g = 1, group_count do
  --@each group g retry deliveries history restored_retries
  redis.call('HLEN', deliveries)
  redis.call('ZCARD', restored_retries)
  if record then
    record.expect(history)
  end
  local again = tonumber(redis.call('ZSCORE', retry, id) or nil)
  if again then
    waits[#waits + 1] = g
    found = found or again == at
  end
end
if by == 'name' and not (due and due > now) then
  return 'late' -- it was due: its delay id is taken for the window alone
end
if not due and #waits == 0 then
  return there and 'late' or 'missing'
end
if not found then
  return 'moved'
end
local kept_lines = {} -- by the streams that get them
if record then
  record.expect(ended)
  redis.call('HLEN', counters)
  local bounds = due and whole_bounds()
  if bounds then
    kept_lines[1] = {ended, bounds, record.lines_of({id}), counters}
    kept_lines[1][3][1].due = string.format('%d', due)
  end
  for _, g in ipairs(waits) do
    --@each group g deliveries history name
    local o = read_options(redis.call('HGET', groups, name))
    if o and o.history then
      kept_lines[#kept_lines + 1] = {history, o.history, record.lines_of({id}, {redis.call('HGET', deliveries, id)}), counters}
    end
  end
end
local held = due and 0 or in_window(kept, {id})[id]

-- The first write is a deletion: after one, a script may write at maxmemory too.
if due then
  redis.call('ZREM', pending, id)
  redis.call('ZREM', restored, id)
end
for _, g in ipairs(waits) do
  --@each group g retry deliveries restored_retries
  redis.call('ZREM', retry, id)
  redis.call('HDEL', deliveries, id)
  redis.call('ZREM', restored_retries, id)
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
if record then
  record.keep_all('cancelled', kept_lines)
end
return 'ok'
