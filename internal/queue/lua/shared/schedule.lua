-- schedule: tells the topic's scheduler of an event.
--
-- Uses     t, scheduler, post
-- Defines  schedule(event)

-- Has the scheduler look at event, in ms, unless it looks earlier anyway. The standby looks a
-- second after that, or sooner by the topic's grace.
local function schedule(event)
  local s = redis.call('HMGET', scheduler, 'next', 'holder', 'standby', 'grace')
  if s[1] and tonumber(s[1]) <= event then return end
  redis.call('HSET', scheduler, 'next', string.format('%d', event))
  local wait = event - t[1] * 1000 - t[2] / 1000
  for i = 2, 3 do
    if s[i] then
      post(s[i], string.format('%.3f', wait))
    end
    wait = wait + (s[4] or 1000)
  end
end
