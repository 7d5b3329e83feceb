-- stats: counts what a topic has, by state and group.
--
-- KEYS  1 meta        hash: layout, groups (the version of the group set)
--       2 groups      hash: group -> "<max deliveries> <retention ms> <max dead>"
--       3 messages    hash: id -> body
--       4 pending     zset: id -> due ms
--       5 taken       zset: delay id -> ms at which it is free
--       6 scheduler   hash: next, holder, standby, until, fault ("<ms> <error>")
--       7 paused      hash: group, or "" for the topic -> "<ms since when> <by> <why>"
--       8 idle        zset: group with an expiry -> ms at which it is removed
--       9 counters    hash: counters of the topic
--      10 resumes     zset: group, or "" for the topic -> ms at which its pause ends
--      11 schedules   hash: recurring schedule -> record; ":" -> text of the last change
--      12 active      hash: group -> "owner epoch ends lease", of groups with SingleActive
--       then for each group of the set:
--         ready       list of "id:due"
--         unack       zset: id -> lease deadline ms
--         retry       zset: id -> due ms
--         dead        zset: id -> ms at which it died
--         waiters     zset: address of an idle subscription -> ms until which it is valid
--         resting     zset: address of a subscription that may not claim now -> ms until which it
--                     is valid
--         stats       hash: counters and times of the group
--         suspects    hash: id -> "expiries alone lost", of messages whose last lease expired
--         standby     zset: address of a subscription that may become the owner -> ms until which
--                     it is valid
-- ARGV  1 version     of the group set that KEYS were made from
--       then the name of each group
--
-- Returns {"stale"} when the group set has changed, or lacks one of the groups, else {"ok", now,
-- number of messages, of pending, due ms of its first, number of delay ids that are taken, next,
-- holder, standby, until, paused, fault, fields and values of counters, number of fields of
-- schedules}, and then for each group: number in ready, its first entry, number in unack, first
-- deadline, number in retry, first due ms, number of dead, first ms of death, waiters, resting,
-- paused, options, ms of its removal, number of valid leases, number of suspects, number of
-- standbys, entry of active, fields and values of stats. A missing value is "". paused is
-- "<ms until when> <ms since when> <by> <why>", with 0 if it has no end.
-- Twice: it only reads.

local meta, group_options, messages, pending, taken = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local scheduler, paused, idle, counters, resumes = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local schedules = KEYS[11]
local version = ARGV[1]
local active = KEYS[12]
local groups = (#KEYS - 12) / 9

--@use now

if redis.call('HGET', meta, 'groups') ~= version then
  return {'stale'}
end

local after = '(' .. string.format('%d', now)

-- Returns the size of a zset, and its lowest score, or "" if it is empty.
local function size(key)
  local n = redis.call('ZCARD', key)
  return n, n > 0 and redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or ''
end

-- Returns the number of members of a zset whose time has not come yet.
local function valid(key)
  return redis.call('ZCOUNT', key, after, '+inf')
end

local pauses = redis.call('HLEN', paused) > 0

-- Returns the pause of a group, or of the topic if the name is "".
local function pause_of(name)
  local pause = pauses and redis.call('HGET', paused, name)
  return pause and (redis.call('ZSCORE', resumes, name) or '0') .. ' ' .. pause or ''
end

local s = redis.call('HMGET', scheduler, 'next', 'holder', 'standby', 'until', 'fault')
local waiting, first_due = size(pending)
local reply = {
  'ok', string.format('%d', now), redis.call('HLEN', messages), waiting, first_due, valid(taken),
  s[1] or '', s[2] or '', s[3] or '', s[4] or '', pause_of(''), s[5] or '', redis.call('HGETALL', counters),
  redis.call('HLEN', schedules),
}
for g = 1, groups do
  local name = ARGV[1 + g]
  local ready, unack, retry, dead = KEYS[4 + g * 9], KEYS[5 + g * 9], KEYS[6 + g * 9], KEYS[7 + g * 9]
  local waiters, resting, stats, suspects = KEYS[8 + g * 9], KEYS[9 + g * 9], KEYS[10 + g * 9], KEYS[11 + g * 9]
  local standby = KEYS[12 + g * 9]
  local settings = redis.call('HGET', group_options, name)
  if not settings then
    return {'stale'}
  end
  local single = string.find(settings, ' single', 1, true)
  local ready_size = redis.call('LLEN', ready)
  local unack_size, first_deadline = size(unack)
  local retry_size, first_retry = size(retry)
  local dead_size, first_death = size(dead)
  for _, value in ipairs({
    ready_size, ready_size > 0 and redis.call('LRANGE', ready, 0, 0)[1] or '', unack_size, first_deadline,
    retry_size, first_retry, dead_size, first_death, valid(waiters), valid(resting), pause_of(name), settings,
    redis.call('ZSCORE', idle, name) or '', unack_size > 0 and valid(unack) or 0, redis.call('HLEN', suspects),
    single and valid(standby) or 0, single and redis.call('HGET', active, name) or '', redis.call('HGETALL', stats),
  }) do
    reply[#reply + 1] = value
  end
end
return reply
