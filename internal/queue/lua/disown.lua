-- disown: ends the leases of subscriptions whose processes are gone.
--
-- KEYS
--   workers    hash: subscription -> "since seen until heard gone who address"
--   leases     hash: id -> "subscription:claim:since:due", the lease's token
--   unack      zset: id -> lease deadline ms, whose fraction keeps the order
--   stats      hash: counters and times of the group
--   scheduler  hash: next, holder, standby, until, look
-- ARGV
--   from   number: place in unack where to go on; 0 at the beginning
--   shift  number: by which deadlines are moved; 0 at the beginning
--   last   flag: the pass before found nothing, nor has this one so far
-- ARGV of each subscription
--   subscription  text:
--
-- It judges again what watch has found. A lease that was claimed since the process was noted as
-- gone shows that it may live, and stays. Of the others it moves the deadlines of both lanes into
-- the past, all by the same time. So they keep their order, and expire does the rest. A call looks
-- at a thousand leases of the group, in their order. What it moves goes before them, so the places
-- of the others stay. Leases that end meanwhile move places, so the caller makes passes until one
-- finds nothing, and tells that in the pass after it. If that finds nothing either, its last call
-- notes that the subscriptions are done with. Their notes stay, to tell since when they are gone.
-- Returns {"lives"} if none of the subscriptions is gone, else
-- REPLY
--   ok     text: "ok"
--   from   number: for the next call; 0 when all leases were looked at
--   shift  number: for the next call
--   ended  number: of leases
-- Twice: the second run finds deadlines that are over.

--@use now post grace schedule heard note absent

local gone, some = {}, false
for s = 1, subscription_count do
  --@each subscription s subscription
  local note = read_note(redis.call('HGET', workers, subscription))
  if note and note.gone > 0 and now - note.gone >= gone_for and absent(note) then
    gone[subscription], some = note, true
  end
end
if not some then
  return {'lives'}
end
-- Read every key that is written later: one of a wrong type is found before the first write.
redis.call('HLEN', stats)
local ids, deadlines = {}, {}
local found = redis.call('ZRANGE', unack, from, from + 999, 'WITHSCORES')
for i = 1, #found, 2 do
  ids[#ids + 1], deadlines[#deadlines + 1] = found[i], tonumber(found[i + 1])
end
if shift == 0 then
  local latest = redis.call('ZREVRANGEBYSCORE', unack, '+inf', '-inf', 'WITHSCORES', 'LIMIT', 0, 1)
  shift = math.max(1, math.ceil((tonumber(latest[2] or nil) or now) - now))
end
local scores = {}
for i, token in ipairs(#ids > 0 and redis.call('HMGET', leases, unpack(ids)) or {}) do
  local subscription, since = string.match(token or '', '^([^:+]*)%+?:%d+:(%d+):') -- of either lane
  local note = gone[subscription]
  if note and deadlines[i] >= now + 1 and tonumber(since) < note.gone then
    scores[#scores + 1], scores[#scores + 2] = string.format('%.17g', deadlines[i] - shift), ids[i]
  end
end
local to = #ids == 1000 and from + 1000 or 0
redis.call('ZREM', unack, '') -- the first write is a deletion: it works at maxmemory
if #scores > 0 then
  redis.call('ZADD', unack, 'XX', unpack(scores))
  redis.call('HINCRBY', stats, 'disowned', #scores / 2)
  schedule(now)
elseif last and to == 0 then
  for subscription, note in pairs(gone) do
    redis.call('HSET', workers, subscription, write_note(note, '-', note.gone))
  end
end
return {'ok', to, shift, #scores / 2}
