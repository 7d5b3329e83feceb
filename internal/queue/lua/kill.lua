-- kill: makes a dead letter of a message, whatever its state in a group is.
--
-- KEYS
--   meta       hash: layout, groups (the version of the group set)
--   groups     hash: group -> options
--   messages   hash: id -> body
--   options    hash: id -> options, only of messages that have any
--   refs       hash: id -> number of groups that still need the body, if more than one
--   pending    zset: id -> due ms
--   names      hash: delay id -> id
--   taken      zset: delay id -> ms at which it is free
--   scheduler  hash: next, holder, standby, until
--   operation  string: the result of an earlier run of this call, expiring
--   ready      list: "id:due"
--   unack      zset: id -> lease deadline ms
--   leases     hash: id -> "subscription:claim:since:due", the lease's token
--   retry      zset: id -> due ms
--   suspects   hash: id -> "expiries alone lost", of messages whose last lease expired
--   resting    zset: address of a subscription that may not claim now -> ms until which it is
--              valid
--   workers    hash: subscription -> "since seen until heard gone who address"
--   limits     hash: group -> state of its limit, "full event woken since last cost"
-- KEYS of each group
--   dead        zset: id -> ms at which it died
--   deliveries  hash: id -> "count flag delayed_for reason"
--   stats       hash: counters and times of the group
-- CONSTANTS
--   looked = 1000  entries of ready that a call looks at
-- ARGV
--   version  text: of the group set that KEYS were made from
--   id       text:
--   number   number: of the group among those of the set; 0 if it is not there
--   reason   text:
--   from     number: entries at the right end of ready that were looked at before
--   memory   text: ms for which the result is remembered
-- ARGV of each group
--   name  text:
--
-- A waiting message is in no group yet, so it becomes a dead letter of all groups. Its delay id is
-- free. The handler that has a message learns of it, because its subscription is told to extend its
-- leases. A call looks at some entries of ready. An entry that it finds gets an id of zeros,
-- and the claim that comes to it drops it: to take it out would search all of ready.
-- Returns {"stale"} when the group set has changed, {"unregistered"} if there is no such group,
-- {"missing"} if there is no such message, else
-- REPLY
--   state   text: that the message had: "waiting", "ready", "in_hand", "retrying" or "dead", which
--           changes nothing; or "searching" if the message was not among the entries
--   length  number: of ready, if it was not among them; else 0
-- Twice: the second run returns the remembered result of the first.


--@use now post grace schedule wake id_length group_options keeps note freed origin

if redis.call('HGET', meta, 'groups') ~= version then
  return {'stale'}
end
local before = redis.call('GET', operation)
if before then
  return {before, 0}
end
if number == 0 then
  return {'unregistered'}
end

-- Read every key that is written later: one of a wrong type is found before the first write.
local there = redis.call('HEXISTS', messages, id) == 1
local own = redis.call('HGET', options, id)
local name = own and string.match(own, 'delay_id:(%S+)')
local waits = redis.call('ZSCORE', pending, id)
local owner = redis.call('HGET', names, name or '')
redis.call('ZCARD', taken)
redis.call('HLEN', refs)
redis.call('LLEN', ready)
redis.call('ZCARD', resting)
redis.call('HLEN', limits)
local held, token = redis.call('ZSCORE', unack, id), redis.call('HGET', leases, id)
local retries = redis.call('ZSCORE', retry, id)
local suspect = redis.call('HEXISTS', suspects, id) == 1
local holder = read_note(redis.call('HGET', workers, string.match(token or '', '^[^:+]*')))
local kept = {}
for g = 1, group_count do
  --@each group g dead deliveries stats name
  kept[g] = redis.call('HGET', groups, name)
  redis.call('ZCARD', dead)
  redis.call('HLEN', deliveries)
  redis.call('HLEN', stats)
end
if not there then
  return {'missing'}
end

-- Makes a dead letter of the message in a group. lease is its token if the group has one, else
-- ":0:<ms>" with when it was due, or nil.
local function bury(g, lease)
  --@each group g dead deliveries stats
  local record = redis.call('HGET', deliveries, id)
  local count, flag, delayed_for = string.match(record or '', '^(%d+) (%S+) (%S+)')
  flag = flag or '-'
  if held and flag == '-' then
    flag = 'd' -- a handler may have got it
  end
  delayed_for = delayed_for or '-'
  local o = read_options(kept[g])
  if o and o.history then
    delayed_for = with_origin(delayed_for, record, lease, held and lease == token)
  end
  redis.call('HSET', deliveries, id, (count or '0') .. ' ' .. flag .. ' ' .. delayed_for .. ' ' .. reason)
  redis.call('ZADD', dead, now, id)
  redis.call('HINCRBY', stats, 'dead_killed', 1)
  local purges = purge_at(kept[g], dead, now)
  if purges then
    schedule(purges)
  end
end

-- Returns the state that the message had, and remembers it.
local function done(state)
  redis.call('SET', operation, state, 'PX', memory)
  return {state, 0}
end

if waits then
  redis.call('ZREM', pending, id) -- the first write is a deletion: it works at maxmemory
  if name and owner == id then
    redis.call('HDEL', names, name)
    redis.call('ZREM', taken, name)
  end
  if group_count > 1 then
    redis.call('HSET', refs, id, group_count)
  end
  for g = 1, group_count do
    bury(g, ':0:' .. string.format('%d', waits))
  end
  return done('waiting')
end
--@each group number dead name
if redis.call('ZSCORE', dead, id) then
  return {'dead', 0}
end
if held then
  redis.call('ZREM', unack, id)
  redis.call('HDEL', leases, id)
  redis.call('HDEL', suspects, id)
  bury(number, token)
  post(holder and holder.address or '', 'extend')
  schedule(freed(name))
  return done('in_hand')
end
if retries then
  redis.call('ZREM', retry, id)
  bury(number)
  return done('retrying')
end
local entries = redis.call('LRANGE', ready, -from - looked, -1 - from)
for i, entry in ipairs(entries) do
  if string.sub(entry, 1, id_length) == id then
    redis.call('HDEL', suspects, id)
    redis.call('LSET', ready, -1 - from - (#entries - i), nobody .. string.sub(entry, id_length + 1))
    bury(number, ':0' .. string.sub(entry, id_length + 1))
    if suspect then -- subscriptions may rest because it was next
      wake(resting, 16)
    end
    return done('ready')
  end
end
return {'searching', redis.call('LLEN', ready)}
