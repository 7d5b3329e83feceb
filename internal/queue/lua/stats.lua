-- stats: counts what a topic has, by state and group.
--
-- KEYS
--   meta       hash: layout, groups (the version of the group set)
--   groups     hash: group -> options
--   messages   hash: id -> body
--   pending    zset: id -> due ms
--   taken      zset: delay id -> ms at which it is free
--   scheduler  hash: next, holder, standby, until, fault ("<ms> <error>")
--   paused     hash: group, or "" for the topic -> "<ms since when> <by> <why>"
--   idle       zset: group with an expiry -> ms at which it is removed
--   counters   hash: counters of the topic
--   resumes    zset: group, or "" for the topic -> ms at which its pause ends
--   schedules  hash: recurring schedule -> record; ":" -> text of the last change
--   active     hash: group -> "owner epoch ends lease", of groups with SingleActive
--   limits     hash: group -> state of its limit, "full event woken since last cost"
-- KEYS of each group
--   ready     list: "id:due"
--   unack     zset: id -> lease deadline ms
--   retry     zset: id -> due ms
--   dead      zset: id -> ms at which it died
--   waiters   zset: address of an idle subscription -> ms until which it is valid
--   resting   zset: address of a subscription that may not claim now -> ms until which it is valid
--   stats     hash: counters and times of the group
--   suspects  hash: id -> "expiries alone lost", of messages whose last lease expired
--   standby   zset: address of a subscription that may become the owner -> ms until which it is
--             valid
--   limited   zset: address of a subscription that waits for the limit -> ms until which it is
--             valid
-- ARGV
--   version  text: of the group set that KEYS were made from
-- ARGV of each group
--   name  text:
--
-- Returns {"stale"} when the group set has changed, or lacks one of the groups, else what follows.
-- A missing value is "". A pause is "<ms until when> <ms since when> <by> <why>", with 0 if it has
-- no end.
-- REPLY
--   ok         text: "ok"
--   now        text: the server's time in ms
--   messages   number: of bodies
--   waiting    number:
--   next_due   text: due ms of the first of pending
--   delay_ids  number: that are taken
--   next       text: of scheduler
--   holder     text: of scheduler
--   standby    text: of scheduler
--   until_ms   text: of scheduler
--   paused     text: pause of the topic
--   fault      text: of scheduler
--   counters   list: fields and values
--   schedules  number: fields of schedules
-- REPLY of each group
--   ready           number:
--   first_ready     text: its first entry
--   in_hand         number:
--   first_deadline  text: ms
--   retrying        number:
--   first_retry     text: due ms
--   dead            number:
--   first_death     text: ms
--   waiters         number: that are valid
--   resting         number: that are valid
--   paused          text: pause of the group
--   options         text: of the group
--   ends            text: ms of its removal
--   held            number: valid leases
--   suspects        number:
--   standbys        number: that are valid
--   active          text: entry of active
--   limited         number: those that wait for the limit and are valid
--   limit_state     text: entry of limits
--   stats           list: fields and values
-- Twice: it only reads.

--@use now group_options

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
for g = 1, group_count do
  --@each group g ready unack retry dead waiters resting stats suspects standby limited name
  local settings = redis.call('HGET', groups, name)
  local o = read_options(settings)
  if not o then
    return {'stale'}
  end
  local ready_size = redis.call('LLEN', ready)
  local unack_size, first_deadline = size(unack)
  local retry_size, first_retry = size(retry)
  local dead_size, first_death = size(dead)
  for _, value in ipairs({
    ready_size, ready_size > 0 and redis.call('LRANGE', ready, 0, 0)[1] or '', unack_size, first_deadline,
    retry_size, first_retry, dead_size, first_death, valid(waiters), valid(resting), pause_of(name), settings,
    redis.call('ZSCORE', idle, name) or '', unack_size > 0 and valid(unack) or 0, redis.call('HLEN', suspects),
    o.single and valid(standby) or 0, o.single and redis.call('HGET', active, name) or '',
    o.limit and valid(limited) or 0, o.limit and redis.call('HGET', limits, name) or '', redis.call('HGETALL', stats),
  }) do
    reply[#reply + 1] = value
  end
end
return reply
