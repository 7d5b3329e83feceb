-- moving: has one move at a time change a topic.
--
-- Uses     operation
-- Defines  is_moving(token)
--
-- A move takes the topic with a token, "<mover>:<number of its step>", which expires. With that it
-- stays taken until the step is over. Afterwards operation has the token and a result.

-- Tells whether another mover has the topic.
local function is_moving(token)
  local held = redis.call('GET', operation)
  return held and not string.find(held, ' ', 1, true) and string.match(held, '^[^:]*') ~= string.match(token, '^[^:]*')
end
