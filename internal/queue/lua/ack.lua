-- ack: settles leased messages as done, and forgets the bodies that no group needs any more.
--
-- KEYS  1 messages    hash: id -> body
--       2 options     hash: id -> options, only of messages that have any
--       3 refs        hash: id -> groups that still need the body, only where several do
--       4 unack       zset: id -> lease deadline ms
--       5 leases      hash: id -> "subscription:claim:due", the lease's token
--       6 deliveries  hash: id -> "count flag delayed_for"
--       7 dead        zset: id -> ms at which it died
-- ARGV  1 token      of leases, those of one claim and due time
--       2 count      of their messages
--       then the ids of these
--       then such a part again, until there are 1000 messages at most
--
-- Returns how many were settled; a message whose lease is another's by now is left alone.
-- Twice: the second run finds no lease and changes nothing.

local messages, options, refs, unack = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local leases, deliveries, dead = KEYS[5], KEYS[6], KEYS[7]

local ids, tokens, n, at = {}, {}, 0, 1
while ARGV[at] do
  local token, last = ARGV[at], at + 1 + tonumber(ARGV[at + 1])
  for i = at + 2, last do
    n = n + 1
    ids[n], tokens[n] = ARGV[i], token
  end
  at = last + 1
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
if settled == 0 then
  return 0
end

-- Reading every key that will be written finds a key of a wrong type before anything is. What is empty
-- need not be written.
--@use forget
local recorded = redis.call('HLEN', deliveries)
-- Most often the only records are those that each dead message has.
local have_deliveries = recorded > 0 and recorded > redis.call('ZCARD', dead)

redis.call('ZREM', unack, unpack(mine))
redis.call('HDEL', leases, unpack(mine))
if have_deliveries then
  redis.call('HDEL', deliveries, unpack(mine))
end
forget(mine)
return settled
