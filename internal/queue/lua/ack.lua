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
--       9 stats       hash: counters and times of the group
-- ARGV  1 token      of leases of one claim with one due time
--       2 count      of their messages; negative if they were dropped, because it was too late
--       then the ids of these messages
--       then more such parts, with 1000 messages at most in all
--
-- A message that has another lease by now, or none, is left alone. But if its last lease expired
-- with this token, that expiry is taken back.
-- Returns how many messages were settled.
-- Twice: the second run finds no lease and changes nothing.

local messages, options, refs, unack = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local leases, deliveries, dead, suspects, stats = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]

local ids, tokens, n, at = {}, {}, 0, 1
local late -- set of the indexes of messages that were dropped; nil: none
while ARGV[at] do
  local token, count = ARGV[at], tonumber(ARGV[at + 1])
  local last = at + 1 + math.abs(count)
  for i = at + 2, last do
    n = n + 1
    ids[n], tokens[n] = ARGV[i], token
    if count < 0 then
      late = late or {}
      late[n] = true
    end
  end
  at = last + 1
end
if n == 0 then
  return 0
end
local held, mine, settled = redis.call('HMGET', leases, unpack(ids)), {}, 0
local dropped = 0
for i = 1, n do
  if held[i] == tokens[i] then
    settled = settled + 1
    mine[settled] = ids[i]
    if late and late[i] then
      dropped = dropped + 1
    end
  end
end

-- Read every key that is written later: one of a wrong type is found before the first write.
-- An empty key need not be written.
--@use forget take_back
local recorded = redis.call('HLEN', deliveries)
-- Every dead message has a record, and every suspect. Most often there are no others.
local have_deliveries = recorded > 0 and recorded > redis.call('ZCARD', dead)
redis.call('HLEN', stats)
local have_suspects = have_deliveries and redis.call('HLEN', suspects) > 0

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
if settled > dropped then
  redis.call('HINCRBY', stats, 'acked', settled - dropped)
end
if dropped > 0 then
  redis.call('HINCRBY', stats, 'dropped', dropped)
end
return settled
