-- schedule: tells the topic's scheduler of an event.
--
-- Uses     t, scheduler, post, usual_grace
-- Defines  schedule(event)
--
-- The snippet reads the key: one of a wrong type is found before the first write. Without
-- the key there is no event.

local planned = scheduler and redis.call('HMGET', scheduler, 'next', 'holder', 'standby', 'grace')

-- Has the scheduler look at event, in ms, unless it looks earlier anyway. A nil event is none. The
-- standby looks a second after that, or sooner by the topic's grace.
local function schedule(event)
  if not event or (planned[1] and tonumber(planned[1]) <= event) then return end
  planned[1] = string.format('%d', event)
  redis.call('HSET', scheduler, 'next', planned[1])
  local wait = event - t[1] * 1000 - t[2] / 1000
  for i = 2, 3 do
    if planned[i] then
      post(planned[i], string.format('%.3f', wait))
    end
    wait = wait + (planned[4] or usual_grace)
  end
end
