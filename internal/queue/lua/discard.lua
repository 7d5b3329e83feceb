-- discard: forgets dead messages of a group.
--
-- KEYS
--   messages    hash: id -> body
--   options     hash: id -> options, only of messages that have any
--   refs        hash: id -> number of groups that still need the body, if more than one
--   dead        zset: id -> ms at which it died
--   deliveries  hash: id -> "count flag delayed_for reason"
--   operation   string: the result of an earlier run of this call, expiring
-- ARGV
--   memory  text: ms for which the result is remembered
-- ARGV of each message
--   id  text: 1000 at most
--
-- Returns a text with one digit for each id: 1 if it was dead, 0 if it was not or came before.
-- Twice: the second run returns the remembered result of the first.

local before = redis.call('GET', operation)
if before then
  return before
end

-- Read every key that is written later: one of a wrong type is found before the first write.
--@use forget
redis.call('HLEN', deliveries)
local ids, seen, result = {}, {}, {}
for i = 1, message_count do
  --@each message i id
  result[i] = '0'
  if not seen[id] and redis.call('ZSCORE', dead, id) then
    seen[id] = true
    ids[#ids + 1] = id
    result[i] = '1'
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
