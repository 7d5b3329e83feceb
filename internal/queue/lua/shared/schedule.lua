-- schedule: tells the topic's scheduler of an event.
--
-- Uses     t, scheduler, post, now, usual_grace, gone_grace, look_each, look_of
-- Defines  schedule(event), schedule_lease(event)
--
-- The snippet reads the key: one of a wrong type is found before the first write. Callers without
-- the key have no event.

local planned = scheduler and redis.call('HMGET', scheduler, 'next', 'holder', 'standby', 'grace', 'look')

-- Tells the holder of an event, and the standby that it is to look a moment later, whether the
-- holder has.
local function tell(event)
  local wait = event - t[1] * 1000 - t[2] / 1000
  for i = 2, 3 do
    if planned[i] then
      post(planned[i], string.format('%.3f', wait))
    end
    wait = wait + math.min(planned[4] or usual_grace, gone_grace)
  end
end

-- Notes event, in ms, and returns true, unless an earlier one is noted.
local function note_event(event)
  if planned[1] and tonumber(planned[1]) <= event then return false end
  planned[1] = string.format('%d', event)
  redis.call('HSET', scheduler, 'next', planned[1])
  return true
end

-- Has the scheduler look at event, unless it looks earlier anyway. A nil event is none. If the
-- holder is late and the server does not hear it, the standby looks at once.
local function schedule(event)
  if not event then return end
  if note_event(event) then
    tell(event)
  elseif now - planned[1] > gone_grace and post(planned[2] or '', '0') == 0 then
    post(planned[3] or '', '0')
  end
end

-- Does the same for the end of a lease. Until then the holder looks for processes that are gone,
-- unless it does already.
local function schedule_lease(event)
  if look_of(planned[5]) then
    return schedule(event)
  end
  planned[5] = string.format('%d', now + look_each)
  redis.call('HSET', scheduler, 'look', planned[5])
  note_event(event)
  tell(math.min(event, now + look_each))
end
