-- bucket: counts how many messages a group with a limit may lease.
--
-- Uses     t, now, limits
-- Defines  buckets()
--
-- The bucket holds burst tokens at most. A message takes one, and one comes back each interval. The
-- state of a group in limits is "full event woken since last cost".

-- Returns the functions for buckets. They are made here, so that a group without a limit does not
-- pay for them.
local function buckets()
  local micros = t[1] * 1000000 + t[2]
  local made = {moment = 100} -- ms in which those that were woken claim

  -- Returns the state of a group as a table:
  --   full   microseconds at which all tokens are back, if no more are taken
  --   event  ms at which the scheduler wakes those who wait for a token; 0: it does not
  --   woken  how many were woken last that have not claimed since
  --   since  ms since when messages wait for the limit; 0: they do not
  --   last   "subscription:number" of the last claim that took tokens
  --   cost   microseconds that each of those took
  -- No clock that was set stalls a group: full is never later than it is for an empty bucket, and
  -- an event that is too late for any bucket is now.
  function made.read(group, limit)
    local full, event, woken, since, last, cost =
      string.match(redis.call('HGET', limits, group) or '', '^(%S+) (%d+) (%d+) (%d+) (%S+) (%S+)$')
    local b, latest = {full = tonumber(full or 0) or 0, event = tonumber(event or 0), woken = tonumber(woken or 0),
      since = tonumber(since or 0), last = last or '-', cost = tonumber(cost or 0) or 0, limit = limit}, now + 2 * made.moment
    if limit.interval then
      latest = latest + (limit.burst + 1) * limit.interval / 1000
      b.full = math.max(math.min(b.full, micros + limit.burst * limit.interval), micros)
    end
    if b.event > latest then
      b.event = now
    end
    return b
  end

  function made.write(group, b)
    redis.call('HSET', limits, group,
      string.format('%.2f %d %d %d %s %.2f', b.full, b.event, b.woken, b.since, b.last, b.cost))
  end

  -- Returns how many messages the group may lease now, if so many are leased.
  function made.free(b, leased)
    local free = math.huge
    if b.limit.interval then
      free = math.floor((micros + b.limit.burst * b.limit.interval - b.full) / b.limit.interval)
    end
    if b.limit.at_once then
      free = math.min(free, b.limit.at_once - leased)
    end
    return math.max(free, 0)
  end

  -- Returns the ms at which there are n tokens, nil without a rate.
  function made.token_at(b, n)
    local l = b.limit
    return l.interval and math.ceil((b.full + (n - l.burst) * l.interval) / 1000)
  end

  -- Messages do not wait for the limit any more: adds to stats for how long they have.
  function made.end_wait(b, stats)
    redis.call('HINCRBY', stats, 'limited_ms', math.max(now - b.since, 0))
    b.since = 0
  end

  return made
end
