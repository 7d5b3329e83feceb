-- recall: takes back the messages that retry under a delay id, or gives them another due time.
--
-- KEYS  1 meta        hash: layout, groups (the version of the group set)
--       2 messages    hash: id -> body
--       3 options     hash: id -> options, only of messages that have any
--       4 refs        hash: id -> number of groups that still need the body, if more than one
--       5 pending     zset: id -> due ms
--       6 names       hash: delay id -> id
--       7 taken       zset: delay id -> ms at which it is free
--       8 scheduler   hash: next, holder, standby, until
--       9 operation   string: the result of an earlier run of this call, expiring
--       then for each group of the set:
--         retry       zset: id -> due ms
--         deliveries  hash: id -> "count flag delayed_for reason"
--         unack       zset: id -> lease deadline ms
--         dead        zset: id -> ms at which it died
--       then only if the set has a window:
--         kept        ready list of the window
-- ARGV  1 version     of the group set that KEYS were made from
--       2 name        the delay id as it is stored
--       3 due         of the retries: ms from now, or "@" and an instant in ms; "" takes the
--                     messages back
--       4 memory      ms for which the result is remembered
--       then for each message that seek found, and for the one that has the delay id:
--         id
--         expires     ms from which on it is too late for the message; "" for never
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

local meta, messages, options, refs, pending = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local names, taken, scheduler, operation = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local version, name, spec, memory = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local groups = math.floor((#KEYS - 9) / 4)
local kept = KEYS[10 + groups * 4]

--@use now due_of post schedule id_length in_window

local before = redis.call('GET', operation)
if before then
  return before
end
if redis.call('HGET', meta, 'groups') ~= version then
  return 'stale'
end
local owner = redis.call('HGET', names, name)
if owner and tonumber(redis.call('ZSCORE', pending, owner) or 0) > now
  and tonumber(redis.call('ZSCORE', taken, name) or 0) > now then
  return 'named'
end

-- Read every key that is written later: one of a wrong type is found before the first write.
redis.call('HLEN', options)
redis.call('ZCARD', pending)
redis.call('ZCARD', taken)
local due = spec ~= '' and due_of(spec)
local found, ids = {}, {}
for i = 5, #ARGV, 2 do
  ids[#ids + 1] = ARGV[i]
end
local has = in_window(kept, ids)
for i = 5, #ARGV, 2 do
  local id, expires = ARGV[i], tonumber(ARGV[i + 1])
  local m = {id = id, held = has[id], waits = {}}
  m.left = tonumber(redis.call('HGET', refs, id) or 1) - m.held -- groups that need the message
  local states, holders, ends = {}, 0, false
  for g = 1, groups do
    local retry, deliveries = KEYS[6 + g * 4], KEYS[7 + g * 4]
    local unack, dead = KEYS[8 + g * 4], KEYS[9 + g * 4]
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
    local late = #m.waits < holders or (m.left > holders and holders < groups)
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
for _, m in ipairs(found) do
  for _, g in ipairs(m.waits) do
    if due then
      redis.call('ZADD', KEYS[6 + g * 4], string.format('%d', due), m.id)
    else
      redis.call('ZREM', KEYS[6 + g * 4], m.id)
      redis.call('HDEL', KEYS[7 + g * 4], m.id)
    end
  end
  if not due then
    if redis.call('HGET', names, name) == m.id then
      redis.call('HDEL', names, name)
      redis.call('ZREM', taken, name)
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
return 'ok'
