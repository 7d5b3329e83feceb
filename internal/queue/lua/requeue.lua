-- requeue: has dead messages of a group delivered again, as if for the first time.
--
-- KEYS
--   groups      hash: group -> options
--   messages    hash: id -> body
--   dead        zset: id -> ms at which it died
--   deliveries  hash: id -> "count flag delayed_for reason"
--   retry       zset: id -> due ms
--   scheduler   hash: next, holder, standby, until
--   operation   string: the result of an earlier run of this call, expiring
-- ARGV
--   group   text:
--   memory  text: ms for which the result is remembered
-- ARGV of each message
--   id     text: 1000 at most
--   delay  text: to its retry in ms, or "@" and an instant in ms
--
-- The messages wait for a retry, without a delay too, so that they come in order with all others.
-- Their deliveries are counted from zero. The flag "r" says that there were deliveries before. What
-- the record tells of the first one stays.
-- Returns how many were dead and had a body, as text, or "unregistered" if there is no such group.
-- Twice: the second run returns the remembered result of the first.

--@use now due_of post grace schedule

local before = redis.call('GET', operation)
if before then
  return before
end
if redis.call('HEXISTS', groups, group) == 0 then
  return 'unregistered'
end

-- Read every key that is written later: one of a wrong type is found before the first write.
redis.call('HLEN', messages)
redis.call('HLEN', deliveries)
redis.call('ZCARD', retry)
local ids, scores, records, seen = {}, {}, {}, {}
local event
for i = 1, message_count do
  --@each message i id delay
  if not seen[id] and redis.call('ZSCORE', dead, id) and redis.call('HEXISTS', messages, id) == 1 then
    seen[id] = true
    ids[#ids + 1] = id
    local due = due_of(delay)
    local before = redis.call('HGET', deliveries, id)
    event = math.min(event or due, due)
    scores[#scores + 1] = string.format('%d', due)
    scores[#scores + 1] = id
    records[#records + 1] = id
    records[#records + 1] = '0 r -' .. (string.match(before or '', '^%d+ %S+ [^ @]*(@%d+:%d+:%d+)') or '')
  end
end
if #ids == 0 then
  return '0'
end

-- The first write is a deletion: after one, a script may write at maxmemory too.
redis.call('ZREM', dead, unpack(ids))
redis.call('HSET', deliveries, unpack(records))
redis.call('ZADD', retry, unpack(scores))
schedule(event)
local result = string.format('%d', #ids)
redis.call('SET', operation, result, 'PX', memory)
return result
