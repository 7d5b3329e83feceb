-- recall: takes back the messages that retry under a delay id, or gives them another due time.
--
-- KEYS
--   meta       hash: layout, groups (the version of the group set)
--   messages   hash: id -> body
--   options    hash: id -> options, only of messages that have any
--   refs       hash: id -> number of groups that still need the body, if more than one
--   pending    zset: id -> due ms
--   names      hash: delay id -> id
--   taken      zset: delay id -> ms at which it is free
--   scheduler  hash: next, holder, standby, until
--   operation  string: the result of an earlier run of this call, expiring
--   kept       list: the ready list of the window, if the set has one
--   groups     hash: group -> options
--   counters   hash: counters of the topic
-- KEYS of each group
--   retry             zset: id -> due ms
--   deliveries        hash: id -> "count flag delayed_for reason"
--   unack             zset: id -> lease deadline ms
--   dead              zset: id -> ms at which it died
--   history           stream: a line of each message that ended
--   restored_retries  zset: id -> ms at which its mark ends
-- ARGV
--   version   text: of the group set that KEYS were made from
--   delay_id  text: as it is stored
--   spec      text: of the retries: ms from now, or "@" and an instant in ms; "" takes the messages
--             back
--   memory    text: ms for which the result is remembered
--   recorded  flag: the topic may have groups with a history, which tells that it was cancelled
-- ARGV of each group
--   name  text:
-- ARGV of each message
--   id       text: of a message that seek found, or that has the delay id
--   expires  number: ms from which on it is too late for the message; "" for never
--
-- All messages change in all groups in which they retry, or nothing does. Messages that are gone
-- are passed over. A message that is taken back is taken out of the window, too. A retry that has
-- another due time stays in its group, and its record stays. An expiry does not count in a group
-- that has the message as a requeued one.
-- Returns one of these. Only "ok" means that something was written.
--   "ok"
--   "named"    the delay id has a message that waits for its first delivery: that one is meant
--   "missing"  all messages are gone
--   "late", an id, how many groups need the message, and for each group of the set its state: "r"
--              for retry, "u" for unack, "d" for dead, "-" for none of these. A group has the
--              message, and does not wait for it.
--   "expires" and an id  the message would be due when it is too late for it
--   "stale"    the group set has changed
-- Twice: the second run returns the remembered result of the first.


--@use now due_of post grace schedule id_length in_window group_options origin history restored

local before = redis.call('GET', operation)
if before then
  return before
end
if redis.call('HGET', meta, 'groups') ~= version then
  return 'stale'
end
local owner = redis.call('HGET', names, delay_id)
if owner and tonumber(redis.call('ZSCORE', pending, owner) or 0) > now
  and tonumber(redis.call('ZSCORE', taken, delay_id) or 0) > now then
  return 'named'
end

-- Read every key that is written later: one of a wrong type is found before the first write.
redis.call('HLEN', options)
redis.call('ZCARD', pending)
redis.call('ZCARD', taken)
local due = spec ~= '' and due_of(spec)
recorded = recorded and not due
local record = recorded and histories()
if record then
  redis.call('HLEN', counters)
end
for g = 1, group_count do
  --@each group g history restored_retries
  redis.call('ZCARD', restored_retries)
  if record then
    record.expect(history)
  end
end
local found, ids = {}, {}
for i = 1, message_count do
  --@each message i id
  ids[i] = id
end
local has = in_window(kept, ids)
for i = 1, message_count do
  --@each message i id expires
  local m = {id = id, held = has[id], waits = {}}
  m.left = tonumber(redis.call('HGET', refs, id) or 1) - m.held -- groups that need the message
  local states, holders, ends = {}, 0, false
  for g = 1, group_count do
    --@each group g retry deliveries unack dead
    local record = redis.call('HGET', deliveries, id) or ''
    local waits, held = redis.call('ZSCORE', retry, id), redis.call('ZSCORE', unack, id)
    local died = redis.call('ZSCORE', dead, id)
    states[g] = '-'
    if waits then
      states[g] = 'r'
      m.waits[#m.waits + 1] = g
      ends = ends or string.match(record, '^%d+ (%S+)') ~= 'r'
    elseif held then
      states[g] = 'u'
    elseif died then
      states[g] = 'd'
    end
    if states[g] ~= '-' then
      holders = holders + 1
    end
  end
  if m.left > 0 and redis.call('HEXISTS', messages, id) == 1 then
    found[#found + 1] = m
    -- No script can tell that a message is in ready. But refs counts the groups that have it. Of a
    -- group without a state, it is in ready there, or the group is done with it.
    local late = #m.waits < holders or (m.left > holders and holders < group_count)
    if late or #m.waits == 0 then
      return string.format('late %s %d ', id, m.left) .. table.concat(states)
    end
    if due and ends and expires and due >= expires then
      return 'expires ' .. id
    end
  end
end
if #found == 0 then
  return 'missing'
end

-- The first write deletes nothing, or a message. After a deletion, a script may write at maxmemory
-- too.
redis.call('ZREM', pending, '')
local kept_lines = {} -- by the streams that get them
for _, m in ipairs(found) do
  for _, g in ipairs(record and m.waits or {}) do
    --@each group g deliveries history name
    local o = read_options(redis.call('HGET', groups, name))
    if o and o.history then
      kept_lines[#kept_lines + 1] = {history, o.history, record.lines_of({m.id}, {redis.call('HGET', deliveries, m.id)}), counters}
    end
  end
  for _, g in ipairs(m.waits) do
    --@each group g retry deliveries restored_retries
    if due then
      redis.call('ZADD', retry, string.format('%d', due), m.id)
      follow(restored_retries, m.id, due)
    else
      redis.call('ZREM', retry, m.id)
      redis.call('HDEL', deliveries, m.id)
      redis.call('ZREM', restored_retries, m.id)
    end
  end
  if not due then
    if redis.call('HGET', names, delay_id) == m.id then
      redis.call('HDEL', names, delay_id)
      redis.call('ZREM', taken, delay_id)
    end
    local left = m.left + m.held - #m.waits -- the window, or a group that is being removed
    if m.held > 0 then
      redis.call('RPUSH', kept, nobody .. ':' .. m.id)
    end
    if left > 0 then
      redis.call('HSET', refs, m.id, left)
    else
      redis.call('HDEL', refs, m.id)
      redis.call('HDEL', messages, m.id)
      redis.call('HDEL', options, m.id)
    end
  end
end
if due then
  schedule(due)
end
redis.call('SET', operation, 'ok', 'PX', memory)
if record then
  record.keep_all('cancelled', kept_lines)
end
return 'ok'
