-- inspect: reads all that the indexes say about some messages, at one time.
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
-- ARGV  1 version     of the group set that KEYS were made from
--       2 bodies      "1" to return bodies, else only whether there is one
--       3 source      number of the group from whose ready list the ids are taken, or 0
--       4 from, 5 to  indexes in that list
--       6 marked      "1" if two marks of each group follow
--       then the marks of each group, as an earlier call returned them: returned, last
--       then the ids of messages, if the source is 0
--
-- No script searches all of ready. But the messages that came into it since the marks were taken
-- are near its ends. Those that were put back are in front, and "returned" counts them. The others
-- are behind the entry that was the last.
-- Returns {"stale"} when the group set has changed, else {"ok", now, marks, then the facts of each
-- message}. The marks of a group are returned, the length of ready, its last entry, and 1 if all
-- messages that came since were found. Facts, false where there is none:
--   the entry, the body or 1, options, refs, due ms
--   the id that has the delay id, and ms until when
--   then for each group: deadline, lease, due ms in retry, ms of death, record, entry in
--   suspects, and 1 if it came into ready since
-- Twice: it only reads.

local meta, messages, options, refs, pending = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local names, taken = KEYS[6], KEYS[7]
local version, bodies, source, marked = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3]), ARGV[6] == '1'
local groups = (#KEYS - 7) / 8

--@use now id_length came

if redis.call('HGET', meta, 'groups') ~= version then
  return {'stale'}
end

local marks, recent = {}, {}
for g = 1, groups do
  local ready, stats = KEYS[g * 8], KEYS[6 + g * 8]
  local sure = true
  recent[g] = {}
  if marked then
    recent[g], sure = came(ready, stats, ARGV[5 + g * 2], ARGV[6 + g * 2])
  end
  marks[g] = {
    redis.call('HGET', stats, 'returned') or '0', redis.call('LLEN', ready),
    redis.call('LRANGE', ready, -1, -1)[1] or '', sure and 1 or 0,
  }
end

local entries = {}
if source > 0 then
  entries = redis.call('LRANGE', KEYS[source * 8], ARGV[4], ARGV[5])
else
  for i = marked and 7 + groups * 2 or 7, #ARGV do
    entries[#entries + 1] = ARGV[i]
  end
end
local reply = {'ok', string.format('%d', now), marks}
for _, entry in ipairs(entries) do
  local id = string.sub(entry, 1, id_length)
  local own = redis.call('HGET', options, id)
  local body
  if bodies then
    body = redis.call('HGET', messages, id)
  else
    body = redis.call('HEXISTS', messages, id) == 1
  end
  local name = own and string.match(own, 'delay_id:(%S+)')
  local facts = {
    entry, body, own, redis.call('HGET', refs, id), redis.call('ZSCORE', pending, id),
    name and redis.call('HGET', names, name), name and redis.call('ZSCORE', taken, name),
  }
  if not name then
    facts[6], facts[7] = false, false
  end
  for g = 1, groups do
    facts[1 + g * 7] = redis.call('ZSCORE', KEYS[1 + g * 8], id)
    facts[2 + g * 7] = redis.call('HGET', KEYS[2 + g * 8], id)
    facts[3 + g * 7] = redis.call('ZSCORE', KEYS[3 + g * 8], id)
    facts[4 + g * 7] = redis.call('ZSCORE', KEYS[4 + g * 8], id)
    facts[5 + g * 7] = redis.call('HGET', KEYS[5 + g * 8], id)
    facts[6 + g * 7] = redis.call('HGET', KEYS[7 + g * 8], id)
    facts[7 + g * 7] = recent[g][id] or false
  end
  reply[#reply + 1] = facts
end
return reply
