-- movable: tells whether a message waits in all groups that need it.
--
-- Uses     refs
-- Defines  groups_of(id, held)

-- Returns how many groups need the message, without the window. held is 1 if that has it, else 0.
-- No script can tell that a message is in ready. But if this is the number of groups in which it
-- retries or is dead, no group has it in ready.
local function groups_of(id, held)
  return tonumber(redis.call('HGET', refs, id) or 1) - held
end
