-- discard: forgets dead messages of a group.
--
-- KEYS  1 messages    hash: id -> body
--       2 options     hash: id -> options, only of messages that have any
--       3 refs        hash: id -> number of groups that still need the body, if more than one
--       4 dead        zset: id -> ms at which it died
--       5 deliveries  hash: id -> "count flag delayed_for reason"
--       6 operation   string: the result of an earlier run of this call, expiring
-- ARGV  1 memory      ms for which the result is remembered
--       then the ids of messages (at most 1000)
--
-- Returns a text with one digit for each id: 1 if it was dead, 0 if it was not or came before.
-- Twice: the second run returns the remembered result of the first.

local messages, options, refs = KEYS[1], KEYS[2], KEYS[3]
local dead, deliveries, operation = KEYS[4], KEYS[5], KEYS[6]
local memory = ARGV[1]

local before = redis.call('GET', operation)
if before then
  return before
end

-- Read every key that is written later: one of a wrong type is found before the first write.
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
