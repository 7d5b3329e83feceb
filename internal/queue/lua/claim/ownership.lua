-- ownership: decides whether the subscription may claim now. If not, it rests, and the script ends.
--
-- Defines  takes_over, whether it takes the place of the owner

local stopped = redis.call('HMGET', paused, '', group)
local rests = (stopped[1] or stopped[2]) and resting -- where the subscription rests, if it may not claim
local takes_over = single and not rests and a.owner == '-' and leased == 0 and limit > 0
if takes_over then
  -- The epoch grows even if the record was lost, because it is not below the time.
  a.owner, a.epoch, mine = me, math.max(a.epoch + 1, now), true
elseif single and not rests and not mine then
  rests = standby
end
local over = mine and not rests and leased > 0
  and redis.call('ZCOUNT', unack, '-inf', '(' .. string.format('%d', now + 1)) > 0
if over then -- the place is free as soon as nothing is leased
  rests, mine, a.ends = standby, false, now
end
-- An idle owner renews its address. Without a valid one it has to claim, as if it had been woken.
local silent = single and rests == standby and a.owner ~= '-' and a.ends == 0 and leased == 0
  and redis.call('ZCOUNT', waiters, '(' .. at, '+inf') == 0
  and not (bucket and redis.call('ZCOUNT', limited, '(' .. at, '+inf') > 0)
if silent then
  a.ends = now + a.lease
end
if rests then
  redis.call('ZREMRANGEBYSCORE', rests, '-inf', now)
  redis.call('DEL', claim)
  redis.call('ZREM', waiters, address)
  count(false)
  if worker ~= '' then
    attend(workers, subscription, worker)
  end
  if expiry then
    redis.call('ZADD', idle, 'XX', 'GT', now + expiry, group)
  end
  if bucket then
    redis.call('ZREM', limited, address)
    local counts, ends = turn and bucket.woken > 0, bucket.since > 0 and (stopped[1] or stopped[2])
    if counts then
      bucket.woken = bucket.woken - 1
    end
    if ends then -- messages wait for the end of the pause now
      tokens_of.end_wait(bucket, stats)
    end
    if counts or ends then
      tokens_of.write(group, bucket)
    end
  end
  local waits = limit > 0 and slots > 0
  if waits then
    redis.call('ZADD', rests, now + patience, address)
  else
    redis.call('ZREM', rests, address)
    if single then
      redis.call('ZREM', resting, address)
      redis.call('ZREM', standby, address)
    end
  end
  local passes = rests == standby and limit == 0 and a.owner == '-' and a.ends > 0 and wake(standby, 1) > 0
  if passes then
    a.ends = now + a.lease
  end
  if mine then -- while the group is paused, no deadline runs
    a.ends, a.lease = 0, lease
  end
  if mine or lost or silent or passes or over then
    write_active(group, a)
  end
  if silent or passes or over then
    schedule(a.ends)
  end
  return answer(0, 0, waits and 1 or 0, 0, '', {}, {}, {}, at)
end
