-- lease: writes the leases, and whom to wake, and returns the reply.

taken = table.concat(taken, ' ')
local waits = 0

-- The first write is a deletion: after one, a script may write at maxmemory too.
if consumed > 0 then
  redis.call('HDEL', scheduler, '')
  left = left - consumed
  if #orphans > 0 then
    redis.call('HDEL', deliveries, unpack(orphans))
    if suspected then
      redis.call('HDEL', suspects, unpack(orphans))
    end
  end
else
  redis.call('DEL', claim)
end
count(n > 0)
if worker ~= '' then
  attend(workers, subscription, worker)
end
if expiry then
  redis.call('ZADD', idle, 'XX', 'GT', now + expiry, group)
end
if takes_over then
  redis.call('DEL', waiters, limited) -- an earlier owner may be there
  redis.call('ZREM', standby, address)
end
if n > 0 then
  redis.call('ZADD', unack, unpack(scores))
  redis.call('HSET', leases, unpack(tokens))
  if unfold then
    redis.call('ZREM', unack, long)
    redis.call('HDEL', leases, long)
  end
  if #changed > 0 then
    redis.call('HSET', suspects, unpack(changed))
  end
  redis.call('SET', claim, number .. ':' .. at .. ' ' .. taken, 'PX', memory)
  if settings.whole then
    schedule(now + lease)
  else
    schedule_lease(now + lease)
  end
end
if leaves then
  redis.call('ZREM', waiters, address)
  redis.call('ZREM', resting, address)
end
-- Subscriptions that rested for a suspect in front become waiters again. They rest on if the next
-- message would have them rest again. An expiry of the suspect may have been taken back since.
if rested and consumed > 0 then
  redis.call('ZREM', resting, address)
  redis.call('ZREMRANGEBYSCORE', resting, '-inf', now)
  local behind = left > 0 and redis.call('HGET', suspects, ids_of(redis.call('LRANGE', ready, consumed, consumed))[1])
  if expiries_of(behind) < math.max(worst, 2) then
    local others = redis.call('ZRANGE', resting, 0, 999, 'WITHSCORES')
    for i = 1, #others, 2 do
      redis.call('ZADD', waiters, others[i + 1], others[i])
      redis.call('ZREM', resting, others[i])
      waiting = waiting + 1
    end
  end
end
-- A subscription that gets less because of the limit waits for its turn.
local short = bucket and not leaves and left > 0 and blocked == 0 and limit < wanted and n == limit
if bucket then
  redis.call('ZREMRANGEBYSCORE', limited, '-inf', now)
  if short then
    redis.call('ZREM', waiters, address)
    -- It keeps its place in the line for a quarter of the time for which the address stays. Later
    -- the next claim may come too late for that.
    if tonumber(redis.call('ZSCORE', limited, address) or 0) < now + stays * 3 / 4 then
      redis.call('ZADD', limited, string.format('%.3f', now + t[2] % 1000 / 1000 + stays), address)
    end
    waits = 1
  else
    redis.call('ZREM', limited, address)
  end
  if n > 0 then
    bucket.cost = bucket.limit.interval or 0
    bucket.full, bucket.last = bucket.full + n * bucket.cost, subscription .. ':' .. number
  end
  local rest, others = free - n, redis.call('ZCARD', limited)
  if bucket.since == 0 then
    bucket.since = left > 0 and others > 0 and rest <= 0 and now or 0
  elseif left == 0 or others == 0 and rest > 0 then
    tokens_of.end_wait(bucket, stats)
  end
  if short and rest <= 0 then
    redis.call('HINCRBY', stats, 'limited', 1)
  end
  if left == 0 and others > 0 then -- they wait for a message now
    local all = redis.call('ZRANGE', limited, 0, 999, 'WITHSCORES')
    for i = 1, #all, 2 do
      redis.call('ZADD', waiters, math.floor(all[i + 1]), all[i])
      redis.call('ZREM', limited, all[i])
    end
  elseif others > 0 then
    local event
    if rest <= 0 then
      event = tokens_of.token_at(bucket, 1)
    else
      if bucket.woken == 0 then
        bucket.woken = wake(limited, math.min(rest, others, 16))
      end
      -- One that was woken may be gone.
      event = redis.call('ZCARD', limited) > 0 and now + tokens_of.moment
    end
    if event and event > now and (bucket.event <= now or event < bucket.event) then
      bucket.event = event
      schedule(event)
    end
  end
  tokens_of.write(group, bucket)
end
if left > 0 then
  if blocked > 0 and slots > 0 then
    redis.call('ZREM', waiters, address)
    redis.call('ZREMRANGEBYSCORE', resting, '-inf', now)
    redis.call('ZADD', resting, now + patience, address)
    waits = 1
  end
  -- Without a token another waits for one, if nobody else does.
  if waiting > 0 and (not bucket or free > n or redis.call('ZCARD', limited) == 0) then
    wake(waiters, 1)
  end
elseif n < slots then
  redis.call('ZREMRANGEBYSCORE', waiters, '-inf', now)
  redis.call('ZADD', waiters, now + patience, address)
  waits = 1
end
if single then
  a.ends, a.lease = (redis.call('ZCARD', waiters) > 0 or bucket and redis.call('ZCARD', limited) > 0) and 0 or now + lease, lease
  write_active(group, a)
  if a.ends > 0 then
    schedule(a.ends)
  end
end
-- Deletions by position are the last writes: see docs/design.md.
if consumed > 0 then
  redis.call('LTRIM', ready, consumed, -1)
end
return answer(left > 0 and 1 or 0, blocked, waits, #orphans, taken, bodies, taken_records, taken_expiries, at)
