-- kill: makes a dead letter of a message, whatever its state in a group is.
--
-- KEYS  1 meta        hash: layout, groups (the version of the group set)
--       2 groups      hash: group -> "<max deliveries> <retention ms> <max dead>"
--       3 messages    hash: id -> body
--       4 options     hash: id -> options, only of messages that have any
--       5 refs        hash: id -> number of groups that still need the body, if more than one
--       6 pending     zset: id -> due ms
--       7 names       hash: delay id -> id
--       8 taken       zset: delay id -> ms at which it is free
--       9 scheduler   hash: next, holder, standby, until
--      10 operation   string: the result of an earlier run of this call, expiring
--         and of the group:
--      11 ready       list of "id:due"
--      12 unack       zset: id -> lease deadline ms
--      13 leases      hash: id -> "subscription:claim:since:due", the lease's token
--      14 retry       zset: id -> due ms
--      15 suspects    hash: id -> "expiries alone lost", of messages whose last lease expired
--      16 resting     zset: address of a subscription that may not claim now -> ms until which it
--                     is valid
--      17 workers     hash: subscription -> "since seen until pid host program version address"
--         then for each group of the set:
--         dead        zset: id -> ms at which it died
--         deliveries  hash: id -> "count flag delayed_for reason"
--         stats       hash: counters and times of the group
-- ARGV  1 version     of the group set that KEYS were made from
--       2 id
--       3 number      of the group among those of the set; 0 if it is not there
--       4 reason
--       5 from        entries at the right end of ready that were looked at before
--       6 memory      ms for which the result is remembered
--       7 single      "1" if PUBLISH counts every receiver (not on a cluster)
--       then the name of each group
--
-- A pending message is in no group yet, so it becomes a dead letter of all groups. Its delay id is
-- free. The handler that has a message learns of it, because its subscription is told to extend its
-- leases. A call looks at a thousand entries of ready. An entry that it finds gets an id of zeros,
-- and the claim that comes to it drops it: to take it out would search all of ready.
-- Returns {"stale"} when the group set has changed, {"unregistered"} if there is no such group,
-- {"missing"} if there is no such message, {"searching", length of ready} if the message was not
-- among the entries, else the state that the message had: {"pending"}, {"ready"}, {"unack"},
-- {"retry"} or {"dead"}, which changes nothing.
-- Twice: the second run returns the remembered result of the first.

local meta, group_options, messages, options, refs = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local pending, names, taken, scheduler, operation = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local ready, unack, leases, retry = KEYS[11], KEYS[12], KEYS[13], KEYS[14]
local suspects, resting, workers = KEYS[15], KEYS[16], KEYS[17]
local version, id, number, reason = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local from, memory, single = tonumber(ARGV[5]), ARGV[6], ARGV[7] == '1'
local groups = (#KEYS - 17) / 3
local looked = 1000

--@use now post schedule wake id_length keeps

if redis.call('HGET', meta, 'groups') ~= version then
  return {'stale'}
end
local before = redis.call('GET', operation)
if before then
  return {before}
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
local held, token = redis.call('ZSCORE', unack, id), redis.call('HGET', leases, id)
local retries = redis.call('ZSCORE', retry, id)
local suspect = redis.call('HEXISTS', suspects, id) == 1
local holder = redis.call('HGET', workers, string.match(token or '', '^[^:+]*'))
local kept = {}
for g = 1, groups do
  kept[g] = redis.call('HGET', group_options, ARGV[7 + g])
  redis.call('ZCARD', KEYS[15 + g * 3])
  redis.call('HLEN', KEYS[16 + g * 3])
  redis.call('HLEN', KEYS[17 + g * 3])
end
if not there then
  return {'missing'}
end

-- Makes a dead letter of the message in a group.
local function bury(g)
  local dead, deliveries, stats = KEYS[15 + g * 3], KEYS[16 + g * 3], KEYS[17 + g * 3]
  local count, flag, delayed_for = string.match(redis.call('HGET', deliveries, id) or '', '^(%d+) (%S+) (%S+)')
  flag = flag or '-'
  if held and flag == '-' then
    flag = 'd' -- a handler may have got it
  end
  redis.call('HSET', deliveries, id, (count or '0') .. ' ' .. flag .. ' ' .. (delayed_for or '-') .. ' ' .. reason)
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
  return {state}
end

if waits then
  redis.call('ZREM', pending, id) -- the first write is a deletion: it works at maxmemory
  if name and owner == id then
    redis.call('HDEL', names, name)
    redis.call('ZREM', taken, name)
  end
  if groups > 1 then
    redis.call('HSET', refs, id, groups)
  end
  for g = 1, groups do
    bury(g)
  end
  return done('pending')
end
if redis.call('ZSCORE', KEYS[15 + number * 3], id) then
  return {'dead'}
end
if held then
  redis.call('ZREM', unack, id)
  redis.call('HDEL', leases, id)
  redis.call('HDEL', suspects, id)
  bury(number)
  local address = string.match(holder or '', '^%S+ %S+ %S+ %S+ %S+ %S+ %S+ (.*)$')
  post(address or '', 'extend')
  return done('unack')
end
if retries then
  redis.call('ZREM', retry, id)
  bury(number)
  return done('retry')
end
local entries = redis.call('LRANGE', ready, -from - looked, -1 - from)
for i, entry in ipairs(entries) do
  if string.sub(entry, 1, id_length) == id then
    redis.call('HDEL', suspects, id)
    redis.call('LSET', ready, -1 - from - (#entries - i), nobody .. string.sub(entry, id_length + 1))
    bury(number)
    if suspect then -- subscriptions may rest because it was next
      wake(resting, 16)
    end
    return done('ready')
  end
end
return {'searching', redis.call('LLEN', ready)}
