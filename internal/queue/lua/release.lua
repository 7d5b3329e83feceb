-- release: gives leases back. Their messages go to the front of ready.
--
-- KEYS  1 unack    zset: id -> lease deadline ms
--       2 leases   hash: id -> "subscription:claim:since:due", the lease's token
--       3 ready    list of "id:due"
--       4 waiters  zset: address of an idle subscription -> ms until which it is valid
--       5 stats    hash: counters and times of the group
--       6 suspects hash: id -> "expiries alone lost", of messages whose last lease expired
--       then only if the group has SingleActive:
--         scheduler hash: next, holder, standby, until
--         active   hash: group -> "owner epoch ends lease"
-- ARGV  for each message, in the order of claiming (at most 1000): id, token
--
-- No delivery is counted. A message that has another lease by now, or none, is left alone. But if
-- its last lease expired with this token, that expiry is taken back.
-- Returns how many messages were put back.
-- Twice: the second run finds no lease and no token that expired last, and changes nothing.

local unack, leases, ready, waiters, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local suspects, scheduler, active = KEYS[6], KEYS[7], KEYS[8]

--@use now post schedule wake active expect take_back

if #ARGV == 0 then
  return 0
end
local ids, tokens = {}, {}
for i = 1, #ARGV, 2 do
  ids[#ids + 1], tokens[#tokens + 1] = ARGV[i], ARGV[i + 1]
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
if active then
  redis.call('HLEN', active)
end

take_back(ids, tokens, held)
if #mine == 0 then
  return 0
end
redis.call('ZREM', unack, unpack(mine))
redis.call('HDEL', leases, unpack(mine))
redis.call('LPUSH', ready, unpack(entries))
redis.call('HINCRBY', stats, 'returned', #entries)
schedule(expect(waiters, wake(waiters, math.min(#mine, 16))))
return #mine
