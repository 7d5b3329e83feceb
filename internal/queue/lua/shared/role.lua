-- role: takes and keeps the topic's scheduling lease.
--
-- Uses     scheduler, me, patience, t, now, usual_grace, gone_grace, look_each, look_of, listeners
-- Defines  wait_until(ms), ask_role(), holder, next_event, look, fault,
--          keep_role(event, looks, done)
--
-- The lease has no end of its own. It is the holder's until usual_grace after the next event, or
-- look. In a topic that has groups with SingleActive that time is shorter: grace. If the server
-- does not hear the holder's process, gone_grace is enough. Then the holder has failed to act, and
-- any process may take it. One of the others is the standby, which is told of every earlier event
-- too and watches the holder. It is of another process than the holder, if there is one. The rest
-- poll.

local grace = usual_grace -- unless the topic has its own
local holder       -- its address
local standby      -- its address
local fault        -- of a scheduler that failed since the last promotion
local next_event   -- ms
local look         -- ms of the next look for processes that are gone

-- A standby rests between two calls, because the next event may be close each time.
local rest = 250 -- ms

-- Returns the microseconds from now until an instant in ms, as text; "" for nil.
local function wait_until(ms)
  return ms and string.format('%d', ms * 1000 - (t[1] * 1000000 + t[2])) or ''
end

-- Returns the earlier of two instants. Each may be nil.
local function earlier(a, b)
  return a and b and math.min(a, b) or a or b
end

-- Returns the process of an address.
local function process(address)
  return string.match(address, '^(.*)|')
end

-- Tells whether the server knows that nobody listens to an address.
local function is_unheard(address)
  return listeners(process(address) or '') == 0
end

-- Returns nil if the caller is the holder or may become it. Else it returns "standby" or "other",
-- and microseconds until the caller has to look again, "" if it need not.
local function ask_role()
  local s = redis.call('HMGET', scheduler, 'next', 'holder', 'standby', 'until', 'fault', 'grace', 'look')
  holder, standby, fault, grace = s[2], s[3], s[5], tonumber(s[6] or grace)
  next_event, look = tonumber(s[1] or nil), look_of(s[7])
  local first = earlier(next_event, look)
  local late = first and now - first or 0
  if not holder or holder == me or late > grace then return end
  if late > gone_grace and is_unheard(holder) then return end
  -- A standby in the holder's process would end with it, so one of another process takes its place.
  if standby and standby ~= me and tonumber(s[4]) >= now and not is_unheard(standby)
    and (process(standby) ~= process(holder) or process(me) == process(holder)) then
    return 'other', ''
  end
  redis.call('HDEL', scheduler, '') -- the first write is a deletion: it works at maxmemory
  redis.call('HSET', scheduler, 'standby', me, 'until', string.format('%d', now + patience))
  if first and late <= gone_grace and grace > gone_grace then
    return 'standby', wait_until(math.max(first + gone_grace + 1, now + rest))
  end
  return 'standby', wait_until(first and first + grace + 1)
end

-- Makes the caller the holder until a moment after the event, or for as long as there is none.
-- looks tells whether processes are to be looked for. If done, no other work is left for the caller
-- now, and no scheduler's failure stays noted.
-- Returns when the caller has to call again, nil if it need not, and whether it is to look now.
local function keep_role(event, looks, done)
  if fault and done then
    redis.call('HDEL', scheduler, 'fault')
  end
  if standby == me then
    redis.call('HDEL', scheduler, 'standby', 'until')
  end
  local set, unset = {'holder', me}, {}
  if event then
    -- An event in the past is work that is left. The holder does it now, so its second begins now.
    set[3], set[4] = 'next', string.format('%d', math.max(event, now))
  else
    unset[1] = 'next'
  end
  local now_due = looks and (not look or look <= now)
  if now_due then
    look = now + look_each
    set[#set + 1], set[#set + 2] = 'look', string.format('%d', look)
  elseif look and not looks then
    look = nil
    unset[#unset + 1] = 'look'
  end
  redis.call('HSET', scheduler, unpack(set))
  if #unset > 0 then
    redis.call('HDEL', scheduler, unpack(unset))
  end
  return earlier(event, look), now_due
end
