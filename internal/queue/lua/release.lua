-- release: hands back leased messages that were not delivered, to where they were in ready.
--
-- KEYS  1 unack    zset: id -> lease deadline ms
--       2 leases   hash: id -> "subscription:claim:due", the lease's token
--       3 ready    list of "id:due"
--       4 waiters  zset: address of an idle subscription -> deadline ms
--       5 stats    hash: what was counted so far
-- ARGV  1 single   "1" if PUBLISH counts every receiver (not on a cluster)
--       then for each message, in the order of claiming (at most 1000): id, token
--
-- No delivery is counted.
-- Returns how many went back; a message whose lease is another's by now is left alone.
-- Twice: the second run finds no lease and changes nothing.

local unack, leases, ready, waiters, stats = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local single = ARGV[1] == '1'

--@use now wake

if #ARGV == 1 then
  return 0
end
local ids = {}
for i = 2, #ARGV, 2 do
  ids[#ids + 1] = ARGV[i]
end
local held, mine, entries = redis.call('HMGET', leases, unpack(ids)), {}, {}
for i = #ids, 1, -1 do
  local token = ARGV[i * 2 + 1]
  if held[i] == token then
    mine[#mine + 1] = ids[i]
    entries[#entries + 1] = ids[i] .. string.match(token, ':%d+$')
  end
end
if #mine == 0 then
  return 0
end

-- Reading every key that will be written finds a key of a wrong type before anything is.
redis.call('LLEN', ready)
redis.call('ZCARD', waiters)
redis.call('HLEN', stats)

redis.call('ZREM', unack, unpack(mine))
redis.call('HDEL', leases, unpack(mine))
redis.call('LPUSH', ready, unpack(entries))
redis.call('HINCRBY', stats, 'returned', #entries)
wake(waiters, math.min(#mine, 16))
return #mine
