-- inspect: reads all that the indexes say about some messages, at one time.
--
-- KEYS
--   meta      hash: layout, groups (the version of the group set)
--   messages  hash: id -> body
--   options   hash: id -> options, only of messages that have any
--   refs      hash: id -> number of groups that still need the body, if more than one
--   pending   zset: id -> due ms
--   names     hash: delay id -> id
--   taken     zset: delay id -> ms at which it is free
-- KEYS of each group
--   ready       list: "id:due"
--   unack       zset: id -> lease deadline ms
--   leases      hash: id -> "subscription:claim:since:due", the lease's token
--   retry       zset: id -> due ms
--   dead        zset: id -> ms at which it died
--   deliveries  hash: id -> "count flag delayed_for reason"
--   stats       hash: counters and times of the group
--   suspects    hash: id -> "expiries alone lost", of messages whose last lease expired
-- ARGV
--   version  text: of the group set that KEYS were made from
--   bodies   flag: "1" to return bodies, else only whether there is one
--   source   number: number of the group from whose ready list the ids are taken, or 0
--   from     text: index in that list
--   to       text: index of the last entry
--   marked   flag: the marks that follow are of an earlier call
-- ARGV of each group
--   returned  text: of its marks, as an earlier call returned them; else ""
--   last      text: of its marks; else ""
-- ARGV of each message
--   known  text: id, if the source is 0
--
-- No script searches all of ready. But the messages that came into it since the marks were taken
-- are near its ends. Those that were put back are in front, and "returned" counts them. The others
-- are behind the entry that was the last.
-- Returns {"stale"} when the group set has changed, else
-- REPLY
--   ok     text: "ok"
--   now    text: the server's time in ms
--   marks  list: for each group returned, the length of ready, its last entry, and 1 if all
--          messages that came since were found
-- REPLY of each message
--   facts  list: with false where there is none the entry, the body or 1, options, refs, due ms,
--          the id that has the delay id, and ms until when; and then for each group: deadline,
--          lease, due ms in retry, ms of death, record, entry in suspects, and 1 if it came into
--          ready since
-- Twice: it only reads.

--@use now id_length came

if redis.call('HGET', meta, 'groups') ~= version then
  return {'stale'}
end

local marks, recent = {}, {}
for g = 1, group_count do
  --@each group g ready stats returned last
  local sure = true
  recent[g] = {}
  if marked then
    recent[g], sure = came(ready, stats, returned, last)
  end
  marks[g] = {
    redis.call('HGET', stats, 'returned') or '0', redis.call('LLEN', ready),
    redis.call('LRANGE', ready, -1, -1)[1] or '', sure and 1 or 0,
  }
end

local entries = {}
if source > 0 then
  --@each group source ready
  entries = redis.call('LRANGE', ready, from, to)
else
  for i = 1, message_count do
    --@each message i known
    entries[i] = known
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
  for g = 1, group_count do
    --@each group g unack leases retry dead deliveries suspects
    facts[1 + g * 7] = redis.call('ZSCORE', unack, id)
    facts[2 + g * 7] = redis.call('HGET', leases, id)
    facts[3 + g * 7] = redis.call('ZSCORE', retry, id)
    facts[4 + g * 7] = redis.call('ZSCORE', dead, id)
    facts[5 + g * 7] = redis.call('HGET', deliveries, id)
    facts[6 + g * 7] = redis.call('HGET', suspects, id)
    facts[7 + g * 7] = recent[g][id] or false
  end
  reply[#reply + 1] = facts
end
return reply
