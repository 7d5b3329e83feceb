-- event: finds the topic's next event.
--
-- Defines  event         ms of the earliest event so far, nil if there is none
--          upcoming(ms)

local event

-- Takes an instant into account; nil is none.
local function upcoming(ms)
  if ms and (not event or ms < event) then
    event = ms
  end
end
