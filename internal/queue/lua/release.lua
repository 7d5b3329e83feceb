-- release: gives leases back. Their messages go to the front of ready.
--
-- KEYS
--   unack      zset: id -> lease deadline ms
--   leases     hash: id -> "subscription:claim:since:due", the lease's token
--   ready      list: "id:due"
--   waiters    zset: address of an idle subscription -> ms until which it is valid
--   stats      hash: counters and times of the group
--   suspects   hash: id -> "expiries alone lost", of messages whose last lease expired
--   scheduler  hash: next, holder, standby, until
--   active     hash: group -> "owner epoch ends lease", of groups with SingleActive
--   limits     hash: group -> state of its limit, "full event woken since last cost"
-- ARGV
--   single  flag: the group has SingleActive
--   group   text: the group has a limit, and this name; "" if it has none
-- ARGV of each message
--   id     text: of each message in the order of claiming, 1000 at most
--   token  text: of its lease
--
-- No delivery is counted. A message that has another lease by now, or none, is left alone. But if
-- its last lease expired with this token, that expiry is taken back.
-- The group gets the token of a lease back if no claim took one since.
-- Returns how many messages were put back.
-- Twice: the second run finds no lease and no token that expired last, and changes nothing.

if not single then
  scheduler = nil -- there is no event
end

--@use now post grace schedule wake active expect take_back

if message_count == 0 then
  return 0
end
local ids, tokens = {}, {}
for i = 1, message_count do
  --@each message i id token
  ids[i], tokens[i] = id, token
end
local held, mine, entries = redis.call('HMGET', leases, unpack(ids)), {}, {}
for i = #ids, 1, -1 do
  if held[i] == tokens[i] then
    mine[#mine + 1] = ids[i]
    entries[#entries + 1] = ids[i] .. string.match(tokens[i], ':%d+$')
  end
end
-- Read every key that is written later: one of a wrong type is found before the first write.
redis.call('ZCARD', unack)
redis.call('LLEN', ready)
redis.call('ZCARD', waiters)
redis.call('HLEN', stats)
if single then
  redis.call('HLEN', active)
end
local state = group ~= '' and redis.call('HGET', limits, group)

take_back(ids, tokens, held)
if #mine == 0 then
  return 0
end
redis.call('ZREM', unack, unpack(mine))
redis.call('HDEL', leases, unpack(mine))
redis.call('LPUSH', ready, unpack(entries))
redis.call('HINCRBY', stats, 'returned', #entries)
if state then
  local full, between, last, cost = string.match(state, '^(%S+)( .* )(%S+) (%S+)$')
  local back = 0
  for i = 1, #ids do
    if held[i] == tokens[i] and string.match(tokens[i], '^(.*):%d+:%d+$') == last then
      back = back + 1
    end
  end
  if back > 0 then
    redis.call('HSET', limits, group, string.format('%.2f', full - back * cost) .. between .. last .. ' ' .. cost)
  end
end
schedule(expect(waiters, wake(waiters, math.min(#mine, 16))))
return #mine
