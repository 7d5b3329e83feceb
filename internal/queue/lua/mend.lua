-- mend: corrects the indexes of one message where that is safe.
--
-- KEYS  1 meta        hash: layout, groups (the version of the group set)
--       2 messages    hash: id -> body
--       3 options     hash: id -> options, only of messages that have any
--       4 refs        hash: id -> number of groups that still need the body, if more than one
--       5 pending     zset: id -> due ms
--       6 names       hash: delay id -> id
--       7 taken       zset: delay id -> ms at which it is free
--       then for each group of the set:
--         ready       list of "id:due"
--         unack       zset: id -> lease deadline ms
--         leases      hash: id -> "subscription:claim:since:due", the lease's token
--         retry       zset: id -> due ms
--         dead        zset: id -> ms at which it died
--         deliveries  hash: id -> "count flag delayed_for reason"
--         stats       hash: counters and times of the group
--         suspects    hash: id -> "expiries alone lost", of messages whose last lease expired
--       and last
--         scheduler   hash: next, holder, standby, until
--         idle        zset: group with an expiry -> ms at which it is removed
-- ARGV  1 version    of the group set that KEYS were made from
--       2 id         of the message
--       3 looked     "1" if the caller has searched ready
--       then for each group: "absent" or "present" as the caller found, or ""; and the marks of the
--       group from before the search: returned, last, length
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
-- Returns {"stale"} when the group set has changed, else {"ok", then a line for each correction}.
-- Twice: the second run finds nothing to correct.

local meta, messages, options, refs, pending = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local names, taken = KEYS[6], KEYS[7]
local groups = (#KEYS - 9) / 8
local scheduler, idle = KEYS[#KEYS - 1], KEYS[#KEYS]
local version, id, looked = ARGV[1], ARGV[2], ARGV[3] == '1'

--@use now post schedule id_length came
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
for g = 1, groups do
  local absent, present = false, false -- in ready, for sure
  local ready, stats, seen = KEYS[g * 8], KEYS[6 + g * 8], looked and ARGV[g * 4]
  local returned, last, length = ARGV[1 + g * 4], ARGV[2 + g * 4], ARGV[3 + g * 4]
  if seen then
    local ids, sure = came(ready, stats, returned, last)
    absent = seen == 'absent' and sure and not ids[id]
    -- An empty list has no last entry, so nothing tells that it has not changed.
    present = ids[id] or (seen == 'present' and (redis.call('HGET', stats, 'returned') or '0') == returned
      and redis.call('LRANGE', ready, -1, -1)[1] == last and redis.call('LLEN', ready) == tonumber(length))
  end
  local record = redis.call('HGET', KEYS[5 + g * 8], id)
  facts[g] = {
    unack = redis.call('ZSCORE', KEYS[1 + g * 8], id), lease = redis.call('HGET', KEYS[2 + g * 8], id),
    retry = redis.call('ZSCORE', KEYS[3 + g * 8], id), dead = redis.call('ZSCORE', KEYS[4 + g * 8], id),
  }
  facts[g].record, facts[g].absent, facts[g].present = record, absent, present
  facts[g].suspect = redis.call('HGET', KEYS[7 + g * 8], id)
  found = found or facts[g].unack or facts[g].retry or facts[g].dead or not absent
end
local name = own and string.match(own, 'delay_id:(%S+)')

-- The first write deletes nothing. After a deletion, a script may write at maxmemory too.
redis.call('HDEL', scheduler, '')
if not body then
  if redis.call('ZREM', pending, id) == 1 then
    did('forgot it in pending, for it had no body')
  end
  if redis.call('HDEL', refs, id) + redis.call('HDEL', options, id) > 0 then
    did('forgot its refs and options, for it had no body')
  end
  if name and redis.call('HGET', names, name) == id then
    redis.call('HDEL', names, name)
    redis.call('ZREM', taken, name)
  end
  for g = 1, groups do
    local gone = redis.call('ZREM', KEYS[1 + g * 8], id) + redis.call('HDEL', KEYS[2 + g * 8], id)
      + redis.call('ZREM', KEYS[3 + g * 8], id) + redis.call('ZREM', KEYS[4 + g * 8], id)
      + redis.call('HDEL', KEYS[5 + g * 8], id) + redis.call('HDEL', KEYS[7 + g * 8], id)
    if gone > 0 then
      did('forgot it in group ' .. g .. ', for it had no body')
    end
  end
  return reply
end

for g = 1, groups do
  local f = facts[g]
  local unack, leases, retry, dead = KEYS[1 + g * 8], KEYS[2 + g * 8], KEYS[3 + g * 8], KEYS[4 + g * 8]
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
    did('took it from retry and dead, for it is leased in group ' .. g)
  end
  if f.retry and f.dead then
    redis.call('ZREM', dead, id)
    f.dead = false
    did('took it from dead, for it waits for a retry in group ' .. g)
  end
  local lives = f.unack or f.retry or f.dead
  if (f.retry or f.dead) and not f.record then
    redis.call('HSET', KEYS[5 + g * 8], id, f.dead and '0 - - not known' or '0 r -')
    did('gave it a record of deliveries in group ' .. g)
  end
  if f.suspect and (not f.record or f.retry or f.dead or (f.absent and not lives)) then
    redis.call('HDEL', KEYS[7 + g * 8], id)
    did('forgot that its lease expired in group ' .. g)
  end
  if f.record and f.absent and not lives then
    redis.call('HDEL', KEYS[5 + g * 8], id)
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
  if groups == 0 then
    redis.call('ZADD', pending, score, id)
    did('put it into pending, for it was in no state')
  end
  for g = 1, groups do
    redis.call('ZADD', KEYS[3 + g * 8], score, id)
    redis.call('HSET', KEYS[5 + g * 8], id, '0 r -')
    did('made it due again, for it was in no state of group ' .. g)
  end
  if groups > 1 then
    redis.call('HSET', refs, id, groups)
  else
    redis.call('HDEL', refs, id)
  end
  if groups > 0 then
    schedule(now)
  end
elseif not due and not removing then
  -- With too low a number the body would be forgotten too early. Too high a number only keeps it.
  local holders = 0
  for g = 1, groups do
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
