-- absent: judges by its note whether a subscription's process is gone.
--
-- CONSTANTS
--   gone_for = 1700  ms for which a process is known to be gone until its leases are ended
--
-- Uses     listeners, history
-- Defines  absent(note), gone_for

-- Tells whether the process of a note is absent: it listened on this server in its present history,
-- and does so no longer. Without a note of that there is no telling.
local function absent(note)
  local channel = string.match(note.address, '^(.*)|')
  if note.heard == '-' or not channel or listeners(channel) ~= 0 then return false end
  return note.heard == history()
end
