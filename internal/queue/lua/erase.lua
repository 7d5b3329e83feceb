-- erase: forgets a topic and all that it holds, in one step or in several.
--
-- KEYS
--   meta       hash: layout, groups (the version of the group set)
--   groups     hash: group -> options
--   idle       zset: group with an expiry -> ms at which it is removed
--   messages   hash: id -> body
--   options    hash: id -> options
--   refs       hash: id -> number of groups
--   pending    zset: id -> due ms
--   scheduler  hash: next, holder, standby, until
--   names      hash: delay id -> id
--   taken      zset: delay id -> ms
--   paused     hash: group -> why
--   resumes    zset: group -> ms
--   counters   hash: counters of the topic
--   schedules  hash: schedule -> record
--   programs   zset: address -> ms
--   active     hash: group -> "owner epoch ends lease"
--   limits     hash: group -> state
--   ended      stream: lines
--   restored   zset: id -> ms
-- KEYS of each group
--   ready       list: "id:due"
--   unack       zset: id -> ms
--   leases      hash: id -> token
--   retry       zset: id -> ms
--   deliveries  hash: id -> record
--   waiters     zset: address -> ms
--   dead        zset: id -> ms
--   resting     zset: address -> ms
--   stats       hash: counters
--   suspects    hash: id -> entry
--   workers     hash: subscription -> who
--   standby     zset: address -> ms
--   limited     zset: address -> ms
--   history     stream: lines
--   restored_retries  zset: id -> ms
-- ARGV
--   version  text: of the group set
--   step     text: "first", "some" or "last"
--   fresh    text: a random version for the changed set, used by the first step
-- ARGV of each removal
--   group  text: that the step takes out of the set, or whose keys it forgets; none with "last"
--
-- The keys are unlinked, so the server frees their memory in the background. The first step takes
-- all groups out of the set, so that they get no more messages. It notes them in idle as being
-- removed, so that a scheduler goes on if the caller does not. The last step forgets the topic
-- itself too, and may be the only one.
-- Returns "ok", or "stale" when the group set has changed.
-- Twice: a step of "some" unlinks nothing more. A first or last step returns "stale", because the
-- version is another or the topic is gone. The caller then begins again with the keys that are
-- left.

--@use each

if redis.call('HGET', meta, 'groups') ~= version then
  return 'stale'
end
if step ~= 'last' then
  redis.call('ZCARD', idle) -- finds a key of a wrong type before the first write
end

if step ~= 'some' then
  redis.call('UNLINK', messages, options, refs, pending, scheduler, names, taken,
    paused, resumes, counters, schedules, programs, active, limits, ended, restored)
end
for g = 1, group_count do
  --@each group g ready unack leases retry deliveries waiters
  --@each group g dead resting stats suspects workers standby limited history restored_retries
  redis.call('UNLINK', ready, unack, leases, retry, deliveries, waiters, dead,
    resting, stats, suspects, workers, standby, limited, history, restored_retries)
end
if step == 'last' then
  redis.call('UNLINK', idle, groups, meta)
elseif step == 'some' then
  each('ZREM', idle, ARGV, first_removal, first_removal + removal_count - 1)
else
  redis.call('UNLINK', groups)
  local ends = {}
  for i = 1, removal_count do
    --@each removal i group
    ends[#ends + 1] = '0'
    ends[#ends + 1] = group
  end
  each('ZADD', idle, ends, 1, #ends)
  redis.call('HSET', meta, 'groups', fresh)
end
return 'ok'
