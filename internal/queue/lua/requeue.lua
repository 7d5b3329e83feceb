-- requeue: has dead messages of a group delivered again, as if for the first time.
--
-- KEYS  1 groups      hash: group -> options
--       2 messages    hash: id -> body
--       3 dead        zset: id -> ms at which it died
--       4 deliveries  hash: id -> "count flag delayed_for reason"
--       5 retry       zset: id -> due ms
--       6 scheduler   hash: next, holder, standby, until
--       7 operation   string: what an earlier run of this call returned, expiring
-- ARGV  1 group
--       2 memory      how long the result is remembered, ms
--       then the ids of messages (at most 1000)
--
-- They wait for a retry that is due now, so that they come in order with all else. Their deliveries are
-- counted anew; the flag "r" tells that there were some before.
-- Returns how many were dead and had a body, as text, or "unregistered" if the group does not exist.
-- Twice: the second run finds the result of the first remembered, and returns it.

local groups, messages, dead, deliveries = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local retry, scheduler, operation = KEYS[5], KEYS[6], KEYS[7]
local group, memory = ARGV[1], ARGV[2]

--@use now schedule

local before = redis.call('GET', operation)
if before then
  return before
end
if redis.call('HEXISTS', groups, group) == 0 then
  return 'unregistered'
end

-- Reading every key that will be written finds a key of a wrong type before anything is.
redis.call('HLEN', messages)
redis.call('HLEN', deliveries)
redis.call('ZCARD', retry)
redis.call('HLEN', scheduler)
local ids, scores, records, seen = {}, {}, {}, {}
local score = string.format('%d', now)
for i = 3, #ARGV do
  local id = ARGV[i]
  if not seen[id] and redis.call('ZSCORE', dead, id) and redis.call('HEXISTS', messages, id) == 1 then
    seen[id] = true
    ids[#ids + 1] = id
    scores[#scores + 1] = score
    scores[#scores + 1] = id
    records[#records + 1] = id
    records[#records + 1] = '0 r -'
  end
end
if #ids == 0 then
  return '0'
end

-- The first write is a deletion: at maxmemory it still works.
redis.call('ZREM', dead, unpack(ids))
redis.call('HSET', deliveries, unpack(records))
redis.call('ZADD', retry, unpack(scores))
schedule(now)
local result = string.format('%d', #ids)
redis.call('SET', operation, result, 'PX', memory)
return result
