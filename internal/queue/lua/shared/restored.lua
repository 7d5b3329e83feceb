-- restored: marks messages that were brought back.
--
-- Defines  mark_of(id, group)
--
-- A mark is a delay id that no message can have, because it is not encoded. While it is taken, the
-- message is not brought back once more.

-- Returns the mark of a message that waits for its due time, or with a group for a retry in that.
local function mark_of(id, group)
  return ':' .. id .. (group and ':' .. group or '')
end
