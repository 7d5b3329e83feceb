-- nack: ends deliveries that failed. Each message is delivered again, or is dead.
--
-- KEYS
--   unack       zset: id -> lease deadline ms
--   leases      hash: id -> "subscription:claim:since:due", the lease's token
--   deliveries  hash: id -> "count flag delayed_for reason"
--   ready       list: "id:due"
--   retry       zset: id -> due ms
--   dead        zset: id -> ms at which it died
--   waiters     zset: address of an idle subscription -> ms until which it is valid
--   scheduler   hash: next, holder, standby, until
--   stats       hash: counters and times of the group
--   suspects    hash: id -> "expiries alone lost", of messages whose last lease expired
--   groups      hash: group -> options
--   active      hash: group -> "owner epoch ends lease", of groups with SingleActive
-- ARGV
--   group   text:
--   single  flag: the group has SingleActive
--   kept    flag: the group keeps a history, for which records tell of the first delivery
-- ARGV of each message
--   id           text: of each message in the order of delivery, 1000 at most
--   token        text: of its lease
--   delay        text: ms from now, or "@" and an instant in ms. "+" in front postpones: the
--                delivery does not count. Or why there is no further delivery: "asked" by the
--                handler, or "late" or "unmarshal", where no handler got the message and no
--                delivery is counted
--   limit        number: deliveries at most, negative: no limit
--   delayed_for  text: the delay that the next delivery is told about, "" to keep the last
--   reason       text: stored if the message dies now
--   said         text: of the handler, stored in any case; "" for none
--
-- The message is no suspect any more, because its process lives.
-- Without a delay the message goes back to the front of ready. With one it waits in retry.
-- A message that has another lease by now, or none, is left alone. But if its last lease expired
-- with this token, that expiry is taken back.
-- Returns how many messages were settled.
-- Twice: the second run finds no lease and changes nothing.

--@use now due_of post grace schedule wake active expect take_back group_options keeps
--@use origin

if message_count == 0 then
  return 0
end
local ids, tokens = {}, {}
for i = 1, message_count do
  --@each message i id token
  ids[i], tokens[i] = id, token
end
local held = redis.call('HMGET', leases, unpack(ids))
local records = redis.call('HMGET', deliveries, unpack(ids))

-- Read every key that is written later: one of a wrong type is found before the first write.
redis.call('ZCARD', unack)
redis.call('LLEN', ready)
redis.call('ZCARD', retry)
redis.call('ZCARD', dead)
redis.call('ZCARD', waiters)
redis.call('HLEN', stats)
if single then
  redis.call('HLEN', active)
end
local have_suspects = redis.call('HLEN', suspects) > 0
local options = redis.call('HGET', groups, group)

take_back(ids, tokens, held)

local settled, woken, died, event = 0, 0, nil, nil
local counts = {} -- what is added to fields of stats
local function count_one(field)
  counts[field] = (counts[field] or 0) + 1
end
for i = #ids, 1, -1 do
  --@each message i id token delay limit delayed_for reason said
  if held[i] == token then
    settled = settled + 1
    redis.call('ZREM', unack, id)
    redis.call('HDEL', leases, id)
    if have_suspects then
      redis.call('HDEL', suspects, id)
    end
    local count, flag, last_for = string.match(records[i] or '', '^(%d+) (%S+) (%S+)')
    if not count then -- there is no record, or it has another form
      count, flag, last_for = 0, '-', '-'
    end
    count = tonumber(count)
    local undelivered = delay == 'late' or delay == 'unmarshal'
    local postponed = string.sub(delay, 1, 1) == '+'
    if postponed then
      delay = string.sub(delay, 2)
    end
    if not undelivered then
      count_one('nacked')
      count = postponed and count or count + 1
      -- A requeued message keeps its flag, because its expiry does not count. Of a message that was
      -- only postponed, nothing else than "d" tells that it was delivered.
      flag = string.find(flag, 'r', 1, true) and 'r' or count == 0 and 'd' or '-'
    end
    if delayed_for == '' then
      delayed_for = last_for
    end
    if kept then
      delayed_for = with_origin(delayed_for, records[i], token, not undelivered)
    end
    local record = string.format('%d', count) .. ' ' .. flag .. ' ' .. delayed_for
    local cause = (undelivered or delay == 'asked') and delay
    if cause or (not postponed and limit > 0 and count >= limit) then
      redis.call('HSET', deliveries, id, record .. ' ' .. reason .. (said ~= '' and ': ' .. said or ''))
      redis.call('ZADD', dead, now, id)
      count_one('dead_' .. (cause or 'deliveries'))
      died = now
    else
      redis.call('HSET', deliveries, id, record .. (said ~= '' and ' ' .. said or ''))
      local due = due_of(delay)
      if due > now then
        redis.call('ZADD', retry, string.format('%d', due), id)
        count_one('retried')
        event = math.min(event or due, due)
      else
        redis.call('LPUSH', ready, id .. string.match(token, ':%d+$'))
        woken = woken + 1
      end
    end
  end
end
local purge = purge_at(options, dead, died)
if event or purge then
  schedule(math.min(event or purge, purge or event))
end
-- Redis searches a small hash from end to end, also for each message that has no record. One long
-- text makes the hash a table, for as long as it exists.
local recorded = redis.call('HLEN', deliveries)
if settled > 0 and recorded > 16 and recorded <= 512 then
  local long = string.rep('-', 65)
  redis.call('HSET', deliveries, long, '')
  redis.call('HDEL', deliveries, long)
end
for field, many in pairs(counts) do
  redis.call('HINCRBY', stats, field, many)
end
if settled > 0 then
  redis.call('HSET', stats, 'settled', string.format('%d', now))
end
if woken > 0 then
  redis.call('HINCRBY', stats, 'returned', woken)
  schedule(expect(waiters, wake(waiters, math.min(woken, 16))))
end
return settled
