-- ack: settles leased messages as done, and forgets the bodies that no group needs any more.
--
-- KEYS  1 messages    hash: id -> body
--       2 options     hash: id -> options, only of messages that have any
--       3 refs        hash: id -> number of groups that still need the body, if more than one
--       4 unack       zset: id -> lease deadline ms
--       5 leases      hash: id -> "subscription:claim:since:due", the lease's token
--       6 deliveries  hash: id -> "count flag delayed_for"
--       7 dead        zset: id -> ms at which it died
--       8 suspects    hash: id -> "expiries alone lost", of messages whose last lease expired
--       9 stats       hash: counters and times of the group; only if the messages are dropped,
--                     because it was too late for them
-- ARGV  1 token      of leases of one claim with one due time
--       2 count      of their messages
--       then the ids of these messages
--       then more such parts, with 1000 messages at most in all
--
-- A message that has another lease by now, or none, is left alone. But if its last lease expired
-- with this token, that expiry is taken back.
-- Returns how many messages were settled. Those that were dropped are counted here. The others the
-- subscription counts by the reply, and tells them with a claim.
-- Twice: the second run finds no lease and changes nothing.

local messages, options, refs, unack = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local leases, deliveries, dead, suspects, stats = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]

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

-- Read every key that is written later: one of a wrong type is found before the first write.
-- An empty key need not be written.
--@use forget take_back
local recorded = redis.call('HLEN', deliveries)
-- Every dead message has a record, and every suspect. Most often there are no others.
local have_deliveries = recorded > 0 and recorded > redis.call('ZCARD', dead)
local have_suspects = have_deliveries and redis.call('HLEN', suspects) > 0
if stats then
  redis.call('HLEN', stats)
end

if settled < n then
  take_back(ids, tokens, held)
end
if settled == 0 then
  return 0
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
if stats then
  redis.call('HINCRBY', stats, 'dropped', settled)
end
return settled
