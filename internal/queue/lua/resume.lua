-- resume: ends the pause of a topic or of one of its groups, or all pauses whose time is over. It
-- wakes the subscriptions that rest.
--
-- KEYS
--   meta       hash: layout, groups (the version of the group set)
--   paused     hash: group, or "" for the topic -> "<ms since when> <by> <why>"
--   resumes    zset: group, or "" for the topic -> ms at which its pause ends
--   operation  string: whether it was paused at an earlier run of this call, expiring
--   scheduler  hash: next, holder, standby, until
--   active     hash: group -> "owner epoch ends lease", of groups with SingleActive
--   limits     hash: group -> state of its limit, "full event woken since last cost"
-- KEYS of each group
--   resting  zset: address of a subscription that may not claim now -> ms until which it is valid
--   ready    list: "id:due"
--   waiters  zset: address of an idle subscription -> ms until which it is valid
-- ARGV
--   version  text: of the group set that KEYS were made from
--   group    text: or "" for the topic. It is not used with over.
--   budget   number: subscriptions to wake at most
--   memory   text: ms for which the call remembers that there was a pause
--   stream   flag: "1" if the messages go into a stream
--   over     flag: "1" to end the pauses whose time is over, 32 at most
--   single   flag: the topic may have groups with SingleActive
-- ARGV of each group
--   name  text:
--
-- The call wakes all that rest, because the pause also ended the wake-ups that were under way.
-- The subscriptions of a group that is still paused, by its own pause or the topic's, rest on. In a
-- topic with a stream the scheduler rested, so the call has it look.
-- Returns {"stale"} when the group set has changed, else
-- REPLY
--   ok     text: "ok"
--   was    number: 1 if it was paused
--   left   number: 1 if more subscriptions rest, or more pauses may be over
--   ended  list: the groups whose pause ended
-- Twice: the second run remembers whether there was a pause, and leaves a pause that began since.
-- It wakes those that still rest and has the scheduler look once more. With over, nothing is
-- remembered: it goes on, since resumes has the group until none rest, or finds nothing to do.


--@use now post grace schedule wake active expect freed

if redis.call('HGET', meta, 'groups') ~= version then
  return {'stale'}
end

-- Read every key that is written later: one of a wrong type is found before the first write.
redis.call('HLEN', paused)
redis.call('ZCARD', resumes)
redis.call('HLEN', limits)
if single then
  redis.call('HLEN', active)
end
for g = 1, group_count do
  --@each group g resting ready waiters
  redis.call('ZCARD', resting)
  redis.call('LLEN', ready)
  redis.call('ZCARD', waiters)
end

local was, left, done, ended = tonumber(redis.call('GET', operation) or nil), 0, {}, {}
if over then
  done, was = redis.call('ZRANGEBYSCORE', resumes, '-inf', now, 'LIMIT', 0, 32), 0
  for _, name in ipairs(done) do
    if redis.call('HDEL', paused, name) == 1 then
      was, ended[#ended + 1] = 1, name
    end
  end
  if #done == 0 then
    return {'ok', 0, 0, ended}
  end
elseif not was then
  was = redis.call('HDEL', paused, group)
  redis.call('ZREM', resumes, group)
  redis.call('SET', operation, was, 'PX', memory)
end
if stream then
  -- The first write deletes nothing. After a deletion, a script may write at maxmemory too.
  redis.call('HDEL', scheduler, '')
  schedule(now)
end
local stopped = redis.call('HEXISTS', paused, '') == 1
for g = 1, stopped and 0 or group_count do
  --@each group g resting ready waiters name
  if redis.call('HEXISTS', paused, name) == 0 then
    local popped = budget > 0 and redis.call('ZPOPMIN', resting, budget) or {}
    for i = 1, #popped, 2 do
      post(popped[i])
    end
    budget = budget - #popped / 2
    if redis.call('ZCARD', resting) > 0 then
      left = 1
    end
    local waiting = redis.call('LLEN', ready)
    if was == 1 then
      schedule(freed(name)) -- leases have ended, of which nobody told those who wait for the limit
    end
    if was == 1 and (waiting > 0 or single) then
      wake(waiters, math.max(1, math.min(waiting, 16)))
      schedule(expect(waiters, 1, 1)) -- the active subscription may have rested
    end
  end
end
if #done > 0 and left == 0 then
  redis.call('ZREM', resumes, unpack(done))
end
return {'ok', was, #done == 32 and 1 or left, ended}
