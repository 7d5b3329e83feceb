-- due_of: finds when a message is due.
--
-- Uses     t, now
-- Defines  due_of(delay)

local now_up = math.ceil((t[1] * 1000000 + t[2]) / 1000)

-- Returns the instant in ms for a delay in ms, or for "@" and an instant in ms. An instant in the
-- past is now. A delay counts from the clock rounded up, so that no message is early. For an
-- instant in the future the text is returned too, so that the caller need not make it anew.
local function due_of(delay)
  if delay == '0' then
    return now
  elseif string.byte(delay) == 64 then -- "@"
    local text = string.sub(delay, 2)
    local due = tonumber(text)
    if due > now then
      return due, text
    end
    return now
  end
  return now_up + tonumber(delay)
end
