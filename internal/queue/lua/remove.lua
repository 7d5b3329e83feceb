-- remove: removes a consumer group and the messages that it still has.
--
-- KEYS
--   meta        hash: layout, groups (the version of the group set)
--   groups      hash: group -> options
--   idle        zset: group with an expiry -> ms at which it is removed; 0: it is now
--   messages    hash: id -> body
--   options     hash: id -> options, only of messages that have any
--   refs        hash: id -> number of groups that still need the body, if more than one
--   ready       list: "id:due"
--   retry       zset: id -> due ms
--   unack       zset: id -> lease deadline ms
--   leases      hash: id -> "subscription:claim:since:due", the lease's token
--   deliveries  hash: id -> "count flag delayed_for"
--   dead        zset: id -> ms at which it died
--   waiters     zset: address of an idle subscription -> ms until which it is valid
--   resting     zset: address of a subscription that may not claim now -> ms until which it is
--               valid
--   stats       hash: counters and times of the group
--   paused      hash: group, or "" for the topic -> "<ms since when> <by> <why>"
--   suspects    hash: id -> "expiries alone lost", of messages whose last lease expired
--   operation   string: the result of an earlier run of this call, expiring
--   resumes     zset: group, or "" for the topic -> ms at which its pause ends
--   workers     hash: subscription -> who it is
--   active      hash: group -> "owner epoch ends lease", of groups with SingleActive
--   standby     zset: address of a subscription that may become the owner -> ms until which it is
--               valid
--   limits      hash: group -> state of its limit
--   limited     zset: address of a subscription that waits for the limit -> ms until which it is
--               valid
--   history     stream: a line of each message that ended
--   restored_retries  zset: id -> ms at which its mark ends
-- CONSTANTS
--   poll = 90000  ms in which every subscription claims: SignValid
-- ARGV
--   group   text:
--   fresh   text: a fresh random version for the changed set
--   budget  number: messages to forget at most (at most 1000)
--   unused  flag: "1" to remove the group only if its expiry has passed without use
--   limit   number: ms: the group must have no subscriptions and must have got no message for so
--           long; "" for no such condition
--   memory  text: ms for which the result is remembered
--
-- The first call takes the group out of the set, so that it gets no more messages. It notes the
-- group in idle, so that a scheduler goes on if the caller does not.
-- When the last group goes, a window goes out of the set with it: else messages would end there,
-- instead of waiting for a group. A window and a copy of one are removed as soon as they end.
-- With unused, these put the removal of other groups off:
--   a valid waiter, which does not know the expiry: the group has no expiry any more
--   a subscription without expiry in the group's past ("lasting" in stats) that may just have
--     claimed: until it would have claimed again
--   such a subscription and a leased message: until the lease ends
--   an expiry that is seen for the first time: by a respite in which every subscription claims,
--     because Redis may not have been reachable. If no call comes in time, up to three times. An
--     outage that begins and ends within the respite is not noticed.
-- With limit, a subscription that was just woken is no waiter any more and has no lease yet. So no
-- subscription may have claimed of late, and the first message of ready must have been due for
-- limit.
-- Returns 1 if messages are left, 2 if the group stays because it is in use or is that of a stream,
-- else 0.
-- Twice: the second run returns the remembered result of the first. So it does not remove a group
-- that was made anew. With unused, nothing is remembered: it goes on, or finds nothing to do.

local respite, in_time = 120000, 3000 -- ms

--@use now id_length window

local before = redis.call('GET', operation)
if before then
  return tonumber(before)
end
local ends = redis.call('ZSCORE', idle, group)
if unused and not (ends and tonumber(ends) <= now) then
  return 0
end
-- Read every key that is written later: one of a wrong type is found before the first write.
local known = redis.call('HEXISTS', groups, group) == 1
local s = redis.call('HMGET', stats, 'seen', 'asked', 'lasting', 'ending')
local seen, asked, lasting, ending = tonumber(s[1] or nil), tonumber(s[2] or 0), s[3], s[4]
local after = '(' .. string.format('%d', now)
local waiting = redis.call('ZCOUNT', waiters, after, '+inf') + redis.call('ZCOUNT', resting, after, '+inf')
  + redis.call('ZCOUNT', standby, after, '+inf') + redis.call('ZCOUNT', limited, after, '+inf')
local subscribed = waiting + redis.call('ZCOUNT', unack, after, '+inf') > 0
redis.call('HLEN', paused)
redis.call('ZCARD', resumes)
local streaming = redis.call('HEXISTS', meta, 'maxlen') == 1
--@use forget
redis.call('HLEN', leases)
redis.call('HLEN', deliveries)
redis.call('HLEN', suspects)
redis.call('HLEN', workers)
redis.call('HLEN', active)
redis.call('HLEN', limits)
local left = redis.call('LLEN', ready) + redis.call('ZCARD', retry)
  + redis.call('ZCARD', unack) + redis.call('ZCARD', dead)
local recently = asked > now - poll
local patient = unused and known and not is_window(group)
if patient and (waiting > 0 or ((subscribed or recently) and lasting)) then
  local at
  if waiting == 0 then
    at = recently and asked + poll
      or math.floor(tonumber(redis.call('ZREVRANGEBYSCORE', unack, '+inf', after, 'WITHSCORES', 'LIMIT', 0, 1)[2]))
  end
  redis.call('ZREM', idle, group)
  if at then
    redis.call('ZADD', idle, string.format('%d', at + 1), group)
  end
  return 0
end
local put_off_to, times = string.match(ending or '', '^(%d+) (%d+)$')
times = put_off_to == ends and tonumber(times) or 0
if patient and (times == 0 or (times < 3 and tonumber(ends) < now - in_time)) then
  local at = string.format('%d', now + respite)
  redis.call('ZREM', idle, group)
  redis.call('ZADD', idle, at, group)
  redis.call('HSET', stats, 'ending', at .. ' ' .. times + 1)
  return 0
end
local first = tonumber(string.match(redis.call('LRANGE', ready, 0, 0)[1] or '', ':(%d+)$') or nil)
local busy = subscribed or recently or not seen or (limit and math.max(seen, asked, first or 0) > now - limit)
if known and (streaming or (limit and busy)) then
  return 2
end

-- Returns the result, and remembers it if this run took the group out of the set.
local function done(result)
  if known and not unused then
    redis.call('SET', operation, result, 'PX', memory)
  end
  return result
end

redis.call('HDEL', groups, group)
redis.call('HDEL', paused, group)
redis.call('HDEL', active, group)
redis.call('HDEL', limits, group)
redis.call('ZREM', resumes, group)
if known then
  redis.call('HSET', meta, 'groups', fresh)
end
local last = known and redis.call('HLEN', groups) == 1 and redis.call('HKEYS', groups)[1]
if last and is_window(last) then
  redis.call('HDEL', groups, last)
  redis.call('ZADD', idle, 0, last)
end
if left > 0 then
  redis.call('ZADD', idle, 0, group)
  local ids = {}
  for _, entry in ipairs(redis.call('LPOP', ready, budget) or {}) do
    ids[#ids + 1] = string.sub(entry, 1, id_length)
  end
  for _, key in ipairs({retry, unack, dead}) do
    if #ids < budget then
      local popped = redis.call('ZPOPMIN', key, budget - #ids)
      for i = 1, #popped, 2 do
        ids[#ids + 1] = popped[i]
      end
    end
  end
  redis.call('HDEL', leases, unpack(ids))
  redis.call('HDEL', deliveries, unpack(ids))
  redis.call('HDEL', suspects, unpack(ids))
  forget(ids)
  if left > #ids then
    return done(1)
  end
end
redis.call('DEL', ready, retry, unack, leases, deliveries, suspects, dead, waiters, resting, stats, workers, standby,
  limited, history, restored_retries)
redis.call('ZREM', idle, group)
return done(0)
