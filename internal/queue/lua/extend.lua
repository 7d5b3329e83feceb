-- extend: moves the deadlines of leases on while handlers run.
--
-- KEYS  1 unack    zset: id -> lease deadline ms, whose fraction keeps the order
--       2 leases   hash: id -> "subscription:claim:since:due", the lease's token
--       3 workers  hash: subscription -> "since seen until who"; may be left out
-- ARGV  1 lease    ms from now to the new deadlines
--       then for each message, in the order of delivery (at most 1000): id, token
--       then, with workers: subscription, and "<ms for which the note is valid> <who>"
--
-- Returns "id token" for each lease that is lost. The token is there because after a failover the
-- subscription may hold the message by another lease.
-- Twice: the second run moves the deadlines once more.

local unack, leases, workers = KEYS[1], KEYS[2], KEYS[3]
local lease, last = tonumber(ARGV[1]), workers and #ARGV - 2 or #ARGV

--@use now attend

if last == 1 then
  return {}
end
local ids = {}
for i = 2, last, 2 do
  ids[#ids + 1] = ARGV[i]
end
local held, scores, lost = redis.call('HMGET', leases, unpack(ids)), {}, {}
local before, place, score = '', 0, string.format('%d', now + lease)
for i, id in ipairs(ids) do
  if held[i] == ARGV[i * 2 + 1] then
    if id < before then -- a larger fraction keeps the order, as in claim
      place = place + 1
      score = string.format('%.17g', now + lease + place / 1024)
    end
    before = id
    scores[#scores + 1] = score
    scores[#scores + 1] = id
  else
    lost[#lost + 1] = id .. ' ' .. ARGV[i * 2 + 1]
  end
end
if workers then
  redis.call('HLEN', workers)
end
if #scores > 0 then
  -- The first write deletes nothing. After a deletion, a script may write at maxmemory too.
  redis.call('ZREM', unack, '')
  redis.call('ZADD', unack, 'XX', unpack(scores))
  if workers then
    attend(workers, ARGV[last + 1], ARGV[last + 2])
  end
end
return lost
