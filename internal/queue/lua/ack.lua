-- ack: settles leased messages as done, and forgets the bodies that no group needs any more.
--
-- KEYS
--   messages    hash: id -> body
--   options     hash: id -> options, only of messages that have any
--   refs        hash: id -> number of groups that still need the body, if more than one
--   unack       zset: id -> lease deadline ms
--   leases      hash: id -> "subscription:claim:since:due", the lease's token
--   deliveries  hash: id -> "count flag delayed_for"
--   dead        zset: id -> ms at which it died
--   suspects    hash: id -> "expiries alone lost", of messages whose last lease expired
--   stats       hash: counters and times of the group; only if the messages are dropped, because
--               it was too late for them, or if the group keeps a history
--   history     stream: a line of each message that ended; only if the group keeps them
-- ARGV
--   drops  flag: the messages are dropped, because it was too late for them
--   kept   text: "<ms>:<number>", the bounds of the history; "" if the group keeps none
--   by     text: who settles them, for the history
--   uuids  text: of the messages, for the history: "<length> <uuid>" of each
-- ARGV of each part
--   token  text: of leases of one claim with one due time
--   count  number: of their messages
-- ARGV of each message
--   id  text: of the messages of all parts, one part after the other; 1000 at most
--
-- A message that has another lease by now, or none, is left alone. But if its last lease expired
-- with this token, that expiry is taken back.
-- Returns how many messages were settled. Those that were dropped are counted here. The others the
-- subscription counts by the reply, and tells them with a claim.
-- Twice: the second run finds no lease and changes nothing.

local ids, tokens, n = {}, {}, 0
for p = 1, part_count do
  --@each part p token count
  for i = n + 1, n + count do
    --@each message i id
    ids[i], tokens[i] = id, token
  end
  n = n + count
end
if n == 0 then
  return 0
end
local held, mine, settled = redis.call('HMGET', leases, unpack(ids)), {}, 0
for i = 1, n do
  if held[i] == tokens[i] then
    settled = settled + 1
    mine[settled] = ids[i]
  end
end

-- Read every key that is written later: one of a wrong type is found before the first write.
-- An empty key need not be written.
--@use forget take_back origin history
local recorded = redis.call('HLEN', deliveries)
-- Every dead message has a record, and every suspect. Most often there are no others.
local have_deliveries = recorded > 0 and recorded > redis.call('ZCARD', dead)
local have_suspects = have_deliveries and redis.call('HLEN', suspects) > 0
local record = kept ~= '' and histories()
if drops or record then
  redis.call('HLEN', stats)
end
if record then
  record.expect(history)
end
if settled < n then
  take_back(ids, tokens, held)
end
if settled == 0 then
  return 0
end
local lines
if record then
  local records = have_deliveries and redis.call('HMGET', deliveries, unpack(mine)) or {}
  local mine_uuids, mine_tokens, at = {}, {}, 1
  for i = 1, n do
    local size, from = string.match(uuids, '^(%d+) ()', at)
    at = from + size
    if tokens[i] == held[i] then
      mine_tokens[#mine_tokens + 1] = tokens[i]
      mine_uuids[#mine_uuids + 1] = string.sub(uuids, from, at - 1)
    end
  end
  lines = record.lines_of(mine, records, mine_uuids)
  for i, l in ipairs(lines) do
    l.due, l.first, l.last = read_origin('0 - ' .. with_origin('', records[i], mine_tokens[i], not drops))
    l.by, l.count = by, drops and l.count or l.count + 1
  end
end
redis.call('ZREM', unack, unpack(mine))
redis.call('HDEL', leases, unpack(mine))
if have_deliveries then
  redis.call('HDEL', deliveries, unpack(mine))
end
if have_suspects then
  redis.call('HDEL', suspects, unpack(mine))
end
forget(mine)
if drops then
  redis.call('HINCRBY', stats, 'dropped', settled)
end
if lines then
  record.keep(history, kept, drops and 'dropped' or 'acked', lines, stats)
end
return settled
