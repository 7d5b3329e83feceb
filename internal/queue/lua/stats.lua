-- stats: counts what a topic holds, by state and group.
--
-- KEYS  1 meta        hash: layout, groups (the version of the group set)
--       2 groups      hash: group -> "<max deliveries> <retention ms>"
--       3 messages    hash: id -> body
--       4 pending     zset: id -> due ms
--       5 taken       zset: delay id -> ms at which it is free
--       6 scheduler   hash: next, holder, standby, until
--       7 paused      hash: group, or "" for the topic -> ms since when
--       8 idle        zset: group that is removed when unused -> ms at which it is
--       then for each group of the set:
--         ready       list of "id:due"
--         unack       zset: id -> lease deadline ms
--         retry       zset: id -> due ms
--         dead        zset: id -> ms at which it died
--         waiters     zset: address of an idle subscription -> deadline ms
--         resting     zset: address of a subscription whose claim was stopped -> deadline ms
--         stats       hash: what was counted so far
-- ARGV  1 version     of the group set that KEYS were made from
--       then the name of each group
--
-- Returns {"stale"} when the group set has changed, else {"ok", now, messages, pending, head of pending,
-- delay ids that are taken, next, holder, standby, until, paused, then for each group: ready, its first entry,
-- unack, its head, retry, its head, dead, its head, waiters, resting, paused, options, end of an unused group,
-- valid leases, delivered, late_ms, latest_ms, dropped, seen}. What is not there is "".
-- Twice: it only reads.

local meta, group_options, messages, pending, taken = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local scheduler, paused, idle = KEYS[6], KEYS[7], KEYS[8]
local version = ARGV[1]
local groups = (#KEYS - 8) / 7

--@use now

local function head(key)
  return redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or ''
end

if redis.call('HGET', meta, 'groups') ~= version then
  return {'stale'}
end
local after = '(' .. string.format('%d', now)
local s = redis.call('HMGET', scheduler, 'next', 'holder', 'standby', 'until')
local reply = {
  'ok', string.format('%d', now), redis.call('HLEN', messages), redis.call('ZCARD', pending), head(pending),
  redis.call('ZCOUNT', taken, after, '+inf'), s[1] or '', s[2] or '', s[3] or '', s[4] or '', redis.call('HGET', paused, '') or '',
}
for g = 1, groups do
  local ready, unack, retry, dead = KEYS[2 + g * 7], KEYS[3 + g * 7], KEYS[4 + g * 7], KEYS[5 + g * 7]
  local waiters, resting, stats = KEYS[6 + g * 7], KEYS[7 + g * 7], KEYS[8 + g * 7]
  local counted = redis.call('HMGET', stats, 'delivered', 'late_ms', 'latest_ms', 'dropped', 'seen')
  for _, value in ipairs({
    redis.call('LLEN', ready), redis.call('LRANGE', ready, 0, 0)[1] or '', redis.call('ZCARD', unack),
    head(unack),
    redis.call('ZCARD', retry), head(retry), redis.call('ZCARD', dead), head(dead),
    redis.call('ZCOUNT', waiters, after, '+inf'), redis.call('ZCOUNT', resting, after, '+inf'),
    redis.call('HGET', paused, ARGV[1 + g]) or '', redis.call('HGET', group_options, ARGV[1 + g]) or '',
    redis.call('ZSCORE', idle, ARGV[1 + g]) or '', redis.call('ZCOUNT', unack, after, '+inf'),
  }) do
    reply[#reply + 1] = value
  end
  for i = 1, 5 do
    reply[#reply + 1] = counted[i] or ''
  end
end
return reply
