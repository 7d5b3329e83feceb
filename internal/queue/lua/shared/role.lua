-- role: takes and keeps the topic's scheduling lease.
--
-- Uses     scheduler, me, patience, t, now, usual_grace
-- Defines  wait_until(ms), ask_role(), keep_role(event, done)
--
-- The lease has no end of its own. It is the holder's until a second after the next event. In a
-- topic that has groups with SingleActive that time is shorter: grace. Then the holder has failed
-- to act, and any process may take it. One of the others is the standby, which is told of every
-- earlier event too and watches the holder. It is of another process than the holder, if there is
-- one. The rest poll.

local grace = usual_grace -- unless the topic has its own
local standby      -- its address
local fault        -- of a scheduler that failed since the last promotion

-- Returns the microseconds from now until an instant in ms, as text.
local function wait_until(ms)
  return string.format('%d', ms * 1000 - (t[1] * 1000000 + t[2]))
end

-- Returns the process of an address.
local function process(address)
  return string.match(address, '^(.*)|')
end

-- Returns nil if the caller is the holder or may become it. Else it returns "standby" or "other",
-- and microseconds until the caller has to look again, "" if it need not.
local function ask_role()
  local s = redis.call('HMGET', scheduler, 'next', 'holder', 'standby', 'until', 'fault', 'grace')
  local next_event, holder = tonumber(s[1] or nil), s[2]
  standby, fault, grace = s[3], s[5], tonumber(s[6] or grace)
  if not holder or holder == me or (next_event and now > next_event + grace) then return end
  -- A standby in the holder's process would end with it, so one of another process takes its place.
  if standby and standby ~= me and tonumber(s[4]) >= now
    and (process(standby) ~= process(holder) or process(me) == process(holder)) then
    return 'other', ''
  end
  redis.call('HDEL', scheduler, '') -- the first write is a deletion: it works at maxmemory
  redis.call('HSET', scheduler, 'standby', me, 'until', string.format('%d', now + patience))
  return 'standby', next_event and wait_until(next_event + grace + 1) or ''
end

-- Makes the caller the holder until a second after the event, or for as long as there is none. If
-- done, no other work is left for the caller now, and no scheduler's failure stays noted.
local function keep_role(event, done)
  if fault and done then
    redis.call('HDEL', scheduler, 'fault')
  end
  if standby == me then
    redis.call('HDEL', scheduler, 'standby', 'until')
  end
  if event then
    -- An event in the past is work that is left. The holder does it now, so its second begins now.
    redis.call('HSET', scheduler, 'holder', me, 'next', string.format('%d', math.max(event, now)))
  else
    redis.call('HSET', scheduler, 'holder', me)
    redis.call('HDEL', scheduler, 'next')
  end
end
