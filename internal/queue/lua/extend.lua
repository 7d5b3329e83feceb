-- extend: moves the deadlines of leases on while handlers run.
--
-- KEYS
--   unack    zset: id -> lease deadline ms, whose fraction keeps the order
--   leases   hash: id -> "subscription:claim:since:due", the lease's token
--   workers  hash: subscription -> "since seen until heard gone who address"
--   stats    hash: counters and times of the group; only if worker is not ""
-- ARGV
--   lease         number: ms from now to the new deadlines
--   subscription  text: that has the leases; only if worker is not ""
--   worker        text: "<ms for which the note is valid> <who>", to note that the subscription
--                 lives; "" most often
-- ARGV of each message
--   id     text: of each message in the order of delivery, 1000 at most
--   token  text: of its lease
--
-- Returns "id token" for each lease that is lost. The token is there because after a failover the
-- subscription may hold the message by another lease.
-- Twice: the second run moves the deadlines once more.

--@use now heard attend

if message_count == 0 then
  return {}
end
local ids = {}
for i = 1, message_count do
  --@each message i id
  ids[i] = id
end
local held, scores, lost = redis.call('HMGET', leases, unpack(ids)), {}, {}
local before, place, score = '', 0, string.format('%d', now + lease)
for i = 1, message_count do
  --@each message i id token
  if held[i] == token then
    if id < before then -- a larger fraction keeps the order, as in claim
      place = place + 1
      score = string.format('%.17g', now + lease + place / 1024)
    end
    before = id
    scores[#scores + 1] = score
    scores[#scores + 1] = id
  else
    lost[#lost + 1] = id .. ' ' .. token
  end
end
if worker ~= '' then
  redis.call('HLEN', workers)
  redis.call('HLEN', stats)
end
if #scores > 0 then
  -- The first write deletes nothing. After a deletion, a script may write at maxmemory too.
  redis.call('ZREM', unack, '')
  redis.call('ZADD', unack, 'XX', unpack(scores))
  if worker ~= '' then
    attend(workers, subscription, worker)
    redis.call('HSET', stats, 'shown', string.format('%d', now))
  end
end
return lost
