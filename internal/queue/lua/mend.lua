-- mend: corrects the indexes of one message, or a delay id, by few rules.
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
--   idle       zset: group with an expiry -> ms at which it is removed
-- KEYS of each group
--   ready       list: "id:due"
--   unack       zset: id -> lease deadline ms
--   leases      hash: id -> "subscription:claim:since:due", the lease's token
--   retry       zset: id -> due ms
--   dead        zset: id -> ms at which it died
--   deliveries  hash: id -> "count flag delayed_for reason"
--   stats       hash: counters and times of the group
--   suspects    hash: id -> "expiries alone lost", of messages whose last lease expired and last
-- ARGV
--   version  text: of the group set that KEYS were made from
--   id       text: of the message; "" to look only at the delay id
--   half     text: a delay id as it is stored, which only one of its two keys has; else ""
--   looked   flag: "1" if the caller has searched ready
-- ARGV of each group
--   seen      text: "absent" or "present" as the caller found the message in ready, or ""
--   returned  text: a mark of the group from before the search, as inspect returned it; else ""
--   last      text: another mark; else ""
--   length    number: another mark; else ""
--
-- The rules. Everything is read again here, so that what is correct by now stays as it is.
--   1  A message without a body is forgotten. A claim does that with its entries of ready.
--   2  A message with a body that is in no state is due again at once: in all groups, of which some
--      may have had it. So is a message of a group that has half a lease for it, and no more.
--   3  Of two places in a group, a message in hand stays so. Else a retry stays.
--   4  Entries that follow from others are made anew: records of deliveries, suspects, delay ids,
--      and refs.
-- refs is raised to the number of groups that surely have the message. A group has it in ready if
-- it came there since the marks, or was present and ready has not changed. refs is lowered only for
-- a message that is in no state, since all groups get that.
-- While a group is being removed, nobody can tell which groups need a body. Then refs stays, and a
-- message that is in no state stays so.
-- Returns {"stale"} when the group set has changed, else
-- REPLY
--   ok  text: "ok"
-- REPLY of each correction
--   what   text: was done
--   group  number: in which group, or 0
-- Twice: the second run finds nothing to correct.

--@use now post grace schedule id_length came
local score = string.format('%d', now)

if redis.call('HGET', meta, 'groups') ~= version then
  return {'stale'}
end
local reply = {'ok'}
local function did(what, group)
  reply[#reply + 1] = what
  reply[#reply + 1] = group or 0
end

-- Read every key that is written later: one of a wrong type is found before the first write.
redis.call('HLEN', names)
redis.call('ZCARD', taken)
if half ~= '' then
  local owner, free = redis.call('HGET', names, half), redis.call('ZSCORE', taken, half)
  if owner and not free or free and not owner then
    redis.call('HDEL', names, half)
    redis.call('ZREM', taken, half)
    did('forgot the delay id, which had only one of its two keys')
  end
  return reply
end
local removing = redis.call('ZCOUNT', idle, '-inf', 0) > 0
local body = redis.call('HEXISTS', messages, id) == 1
local own, counted = redis.call('HGET', options, id), redis.call('HGET', refs, id)
local due = tonumber(redis.call('ZSCORE', pending, id) or nil)
local facts, found = {}, not looked
for g = 1, group_count do
  local absent, present = false, false -- in ready, for sure
  --@each group g ready unack leases retry dead deliveries stats suspects seen returned last length
  if looked then
    local ids, sure = came(ready, stats, returned, last)
    absent = seen == 'absent' and sure and not ids[id]
    -- An empty list has no last entry, so nothing tells that it has not changed.
    present = ids[id] or (seen == 'present' and (redis.call('HGET', stats, 'returned') or '0') == returned
      and redis.call('LRANGE', ready, -1, -1)[1] == last and redis.call('LLEN', ready) == length)
  end
  local record = redis.call('HGET', deliveries, id)
  facts[g] = {
    unack = redis.call('ZSCORE', unack, id), lease = redis.call('HGET', leases, id),
    retry = redis.call('ZSCORE', retry, id), dead = redis.call('ZSCORE', dead, id),
  }
  facts[g].record, facts[g].absent, facts[g].present = record, absent, present
  facts[g].suspect = redis.call('HGET', suspects, id)
  found = found or facts[g].unack or facts[g].retry or facts[g].dead or not absent
end
local name = own and string.match(own, 'delay_id:(%S+)')

-- The first write deletes nothing. After a deletion, a script may write at maxmemory too.
redis.call('HDEL', scheduler, '')
if not body then -- rule 1
  local gone = redis.call('ZREM', pending, id) + redis.call('HDEL', refs, id) + redis.call('HDEL', options, id)
  if name and redis.call('HGET', names, name) == id then
    redis.call('HDEL', names, name)
    redis.call('ZREM', taken, name)
  end
  for g = 1, group_count do
    --@each group g unack leases retry dead deliveries suspects
    gone = gone + redis.call('ZREM', unack, id) + redis.call('HDEL', leases, id)
      + redis.call('ZREM', retry, id) + redis.call('ZREM', dead, id)
      + redis.call('HDEL', deliveries, id) + redis.call('HDEL', suspects, id)
  end
  if gone > 0 then
    did('forgot it, for it had no body')
  end
  return reply
end

for g = 1, group_count do
  local f = facts[g]
  --@each group g unack leases retry dead deliveries suspects
  if f.lease and not f.unack or f.unack and not f.lease then -- rule 2
    if f.unack and not (due or f.retry or f.dead) then
      redis.call('ZADD', retry, score, id)
      schedule(now)
      f.retry = score
    end
    redis.call('ZREM', unack, id)
    redis.call('HDEL', leases, id)
    f.unack = false
    did('ended half a lease', g)
  end
  if f.unack and f.retry or f.unack and f.dead or f.retry and f.dead then -- rule 3
    if f.unack then
      redis.call('ZREM', retry, id)
    end
    redis.call('ZREM', dead, id)
    f.retry, f.dead = not f.unack and f.retry, false
    did(f.unack and 'kept it in hand only' or 'kept its retry only', g)
  end
  local waits = f.retry or f.dead -- rule 4
  local gone = f.absent and not f.unack and not waits
  if waits and not f.record then
    redis.call('HSET', deliveries, id, f.dead and '0 - - not known' or '0 r -')
    did('gave it a record of deliveries', g)
  elseif f.record and gone then
    redis.call('HDEL', deliveries, id)
    did('forgot its record of deliveries', g)
  end
  if f.suspect and (waits or gone or not f.record) then
    redis.call('HDEL', suspects, id)
    did('forgot that its lease expired', g)
  end
end

if due and due > now and name then
  local owner, free = redis.call('HGET', names, name), redis.call('ZSCORE', taken, name)
  if not owner or (owner == id and not free) then
    local window = tonumber(string.match(own, 'window:(%d+)') or 0)
    redis.call('HSET', names, name, id)
    redis.call('ZADD', taken, string.format('%d', due + window), name)
    did('gave its delay id back to it')
  end
end

if not due and not removing and not found then -- rule 2
  if group_count == 0 then
    redis.call('ZADD', pending, score, id)
    did('had it wait for its due time, for it was in no state')
  end
  for g = 1, group_count do
    --@each group g retry deliveries
    redis.call('ZADD', retry, score, id)
    redis.call('HSET', deliveries, id, '0 r -')
    did('made it due again, for it was in no state', g)
  end
  if group_count > 1 then
    redis.call('HSET', refs, id, group_count)
  else
    redis.call('HDEL', refs, id)
  end
  if group_count > 0 then
    schedule(now)
  end
elseif not due and not removing then
  -- With too low a number the body would be forgotten too early. Too high a number only keeps it.
  local holders = 0
  for g = 1, group_count do
    if facts[g].unack or facts[g].retry or facts[g].dead or facts[g].present then
      holders = holders + 1
    end
  end
  if (tonumber(counted) or 1) < holders then
    redis.call('HSET', refs, id, holders)
    did('set refs to the ' .. holders .. ' groups that have it')
  end
end
return reply
