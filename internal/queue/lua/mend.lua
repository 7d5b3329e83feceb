-- mend: corrects the indexes of one message where that is safe.
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
--   id       text: of the message
--   looked   flag: "1" if the caller has searched ready
-- ARGV of each group
--   seen      text: "absent" or "present" as the caller found the message in ready, or ""
--   returned  text: a mark of the group from before the search, as inspect returned it; else ""
--   last      text: another mark; else ""
--   length    number: another mark; else ""
--
-- A message without a body is forgotten. A message with half a lease becomes due again. A message
-- that is in two states of a group keeps the state that loses nothing. A message that is in no
-- state becomes due again in all groups, of which some may have had it.
-- refs is raised to the number of groups that surely have the message. A group has it in ready if
-- it came there since the marks, or was present and ready has not changed. refs is lowered only for
-- a message that is in no state, since all groups get that.
-- While a group is being removed, nobody can tell which groups need a body. Then refs stays, and a
-- message that is in no state stays so.
-- Everything is read again here, so that what is correct by now stays as it is.
-- Returns {"stale"} when the group set has changed, else
-- REPLY
--   ok  text: "ok"
-- REPLY of each correction
--   what  text: was done, with the number of the group
-- Twice: the second run finds nothing to correct.


--@use now post grace schedule id_length came
local score = string.format('%d', now)

if redis.call('HGET', meta, 'groups') ~= version then
  return {'stale'}
end
local reply = {'ok'}
local function did(what)
  reply[#reply + 1] = what
end

-- Read every key that is written later: one of a wrong type is found before the first write.
redis.call('HLEN', names)
redis.call('ZCARD', taken)
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
if not body then
  if redis.call('ZREM', pending, id) == 1 then
    did('forgot that it waits, for it had no body')
  end
  if redis.call('HDEL', refs, id) + redis.call('HDEL', options, id) > 0 then
    did('forgot its refs and options, for it had no body')
  end
  if name and redis.call('HGET', names, name) == id then
    redis.call('HDEL', names, name)
    redis.call('ZREM', taken, name)
  end
  for g = 1, group_count do
    --@each group g unack leases retry dead deliveries suspects
    local gone = redis.call('ZREM', unack, id) + redis.call('HDEL', leases, id)
      + redis.call('ZREM', retry, id) + redis.call('ZREM', dead, id)
      + redis.call('HDEL', deliveries, id) + redis.call('HDEL', suspects, id)
    if gone > 0 then
      did('forgot it in group ' .. g .. ', for it had no body')
    end
  end
  return reply
end

for g = 1, group_count do
  local f = facts[g]
  --@each group g unack leases retry dead deliveries suspects
  if f.lease and not f.unack then
    redis.call('HDEL', leases, id)
    did('took away the lease that had no deadline in group ' .. g)
  end
  if f.unack and not f.lease then
    redis.call('ZREM', unack, id)
    f.unack = false
    if not f.retry and not f.dead then
      redis.call('ZADD', retry, score, id)
      schedule(now)
      f.retry = score
    end
    did('made it due again, for it had a deadline and no lease in group ' .. g)
  end
  if f.unack and (f.retry or f.dead) then
    redis.call('ZREM', retry, id)
    redis.call('ZREM', dead, id)
    f.retry, f.dead = false, false
    did('took it from what retries and is dead, for it is in hand in group ' .. g)
  end
  if f.retry and f.dead then
    redis.call('ZREM', dead, id)
    f.dead = false
    did('took it from what is dead, for it is retrying in group ' .. g)
  end
  local lives = f.unack or f.retry or f.dead
  if (f.retry or f.dead) and not f.record then
    redis.call('HSET', deliveries, id, f.dead and '0 - - not known' or '0 r -')
    did('gave it a record of deliveries in group ' .. g)
  end
  if f.suspect and (not f.record or f.retry or f.dead or (f.absent and not lives)) then
    redis.call('HDEL', suspects, id)
    did('forgot that its lease expired in group ' .. g)
  end
  if f.record and f.absent and not lives then
    redis.call('HDEL', deliveries, id)
    did('forgot its record of deliveries in group ' .. g .. ', which does not have it')
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

if not due and not removing and not found then
  if group_count == 0 then
    redis.call('ZADD', pending, score, id)
    did('had it wait for its due time, for it was in no state')
  end
  for g = 1, group_count do
    --@each group g retry deliveries
    redis.call('ZADD', retry, score, id)
    redis.call('HSET', deliveries, id, '0 r -')
    did('made it due again, for it was in no state of group ' .. g)
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
