-- discard: forgets dead messages of a group.
--
-- KEYS
--   messages    hash: id -> body
--   options     hash: id -> options, only of messages that have any
--   refs        hash: id -> number of groups that still need the body, if more than one
--   dead        zset: id -> ms at which it died
--   deliveries  hash: id -> "count flag delayed_for reason"
--   operation   string: the result of an earlier run of this call, expiring
--   groups      hash: group -> options
--   stats       hash: counters and times of the group
--   history     stream: a line of each message that ended
-- ARGV
--   memory  text: ms for which the result is remembered
--   group   text:
--   how     text: the messages ended, for the history
-- ARGV of each message
--   id  text: 1000 at most
--
-- Returns a text with one digit for each id: 1 if it was dead, 0 if it was not or came before.
-- Twice: the second run returns the remembered result of the first.

--@use group_options origin history

local before = redis.call('GET', operation)
if before then
  return before
end

-- Read every key that is written later: one of a wrong type is found before the first write.
--@use forget
redis.call('HLEN', deliveries)
local o = read_options(redis.call('HGET', groups, group))
local bounds = o and o.history
local record = bounds and histories()
if record then
  redis.call('HLEN', stats)
  record.expect(history)
end
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

local lines = record and record.lines_of(ids, redis.call('HMGET', deliveries, unpack(ids)))
redis.call('ZREM', dead, unpack(ids))
redis.call('HDEL', deliveries, unpack(ids))
forget(ids)
redis.call('SET', operation, result, 'PX', memory)
if lines then
  record.keep(history, bounds, how, lines, stats)
end
return result
