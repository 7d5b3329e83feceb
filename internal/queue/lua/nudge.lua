-- nudge: has the topic's scheduler look, which finds out anew when the next event is.
--
-- KEYS  1 meta       hash: layout, groups (the version of the group set)
--       2 scheduler  hash: next, holder, standby, until
-- ARGV  1 event      ms at which it is to look at the latest, or "": now
--
-- Returns the event, in ms as text, or "" if there is no such topic.
-- Twice: the scheduler looks twice.

local meta, scheduler, event = KEYS[1], KEYS[2], tonumber(ARGV[1])

local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

-- Has the topic's scheduler look no later than at event; the standby a second after.
local function schedule(event)
  local s = redis.call('HMGET', scheduler, 'next', 'holder', 'standby')
  if s[1] and tonumber(s[1]) <= event then return end
  redis.call('HSET', scheduler, 'next', string.format('%d', event))
  local wait = event - t[1] * 1000 - t[2] / 1000
  for i = 2, 3 do
    if s[i] then
      local channel, receiver = string.match(s[i], '^(.*)|(.*)$')
      redis.pcall('PUBLISH', channel, receiver .. string.format(' %.3f', wait))
    end
    wait = wait + 1000
  end
end

if redis.call('HEXISTS', meta, 'groups') == 0 then
  return ''
end
redis.call('HDEL', scheduler, '') -- a deletion, of nothing: at maxmemory it still works
schedule(event or now)
return string.format('%d', event or now)
