-- ack: settles leased messages as done, and forgets the bodies that no group needs any more.
--
-- KEYS  1 messages    hash: id -> body
--       2 options     hash: id -> options, only of messages that have any
--       3 refs        hash: id -> groups that still need the body, only where several do
--       4 unack       zset: id -> lease deadline ms
--       5 leases      hash: id -> "subscription:claim:due", the lease's token
--       6 deliveries  hash: id -> "count flag delayed_for"
-- ARGV  for each message (at most 1000): id, token
--
-- Returns how many were settled; a message whose lease is another's by now is left alone.
-- Twice: the second run finds no lease and changes nothing.

local messages, options, refs, unack = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local leases, deliveries = KEYS[5], KEYS[6]

-- Forgets the bodies that no group needs any more.
local function drop(ids)
  local gone = ids
  if redis.call('HLEN', refs) > 0 then
    gone = {}
    local left = redis.call('HMGET', refs, unpack(ids))
    for i, id in ipairs(ids) do
      if left[i] and tonumber(left[i]) > 1 then
        redis.call('HINCRBY', refs, id, -1)
      else
        gone[#gone + 1] = id
      end
    end
    if #gone == 0 then return end
    redis.call('HDEL', refs, unpack(gone))
  end
  redis.call('HDEL', messages, unpack(gone))
  redis.call('HDEL', options, unpack(gone))
end

if #ARGV == 0 then
  return 0
end
local ids = {}
for i = 1, #ARGV, 2 do
  ids[#ids + 1] = ARGV[i]
end
local held, mine = redis.call('HMGET', leases, unpack(ids)), {}
for i, id in ipairs(ids) do
  if held[i] == ARGV[i * 2] then
    mine[#mine + 1] = id
  end
end
if #mine == 0 then
  return 0
end

-- Reading every key that will be written finds a key of a wrong type before anything is.
redis.call('HLEN', messages)
redis.call('HLEN', options)
redis.call('HLEN', refs)
redis.call('HLEN', deliveries)

redis.call('ZREM', unack, unpack(mine))
redis.call('HDEL', leases, unpack(mine))
redis.call('HDEL', deliveries, unpack(mine))
drop(mine)
return #mine
