-- discard: forgets dead messages of a group.
--
-- KEYS  1 messages    hash: id -> body
--       2 options     hash: id -> options, only of messages that have any
--       3 refs        hash: id -> groups that still need the body, only where several do
--       4 dead        zset: id -> ms at which it died
--       5 deliveries  hash: id -> "count flag delayed_for reason"
--       6 operation   string: what an earlier run of this call returned, expiring
-- ARGV  1 memory      how long the result is remembered, ms
--       then the ids of messages (at most 1000)
--
-- Returns a text with a 1 for each that was dead, and a 0 for each that was not, or was named before.
-- Twice: the second run finds the result of the first remembered, and returns it.

local messages, options, refs = KEYS[1], KEYS[2], KEYS[3]
local dead, deliveries, operation = KEYS[4], KEYS[5], KEYS[6]
local memory = ARGV[1]

local before = redis.call('GET', operation)
if before then
  return before
end

-- Reading every key that will be written finds a key of a wrong type before anything is.
--@use forget
redis.call('HLEN', deliveries)
local ids, seen, result = {}, {}, {}
for i = 2, #ARGV do
  local id = ARGV[i]
  result[i - 1] = '0'
  if not seen[id] and redis.call('ZSCORE', dead, id) then
    seen[id] = true
    ids[#ids + 1] = id
    result[i - 1] = '1'
  end
end
result = table.concat(result)
if #ids == 0 then
  return result
end

redis.call('ZREM', dead, unpack(ids))
redis.call('HDEL', deliveries, unpack(ids))
forget(ids)
redis.call('SET', operation, result, 'PX', memory)
return result
