-- grace: how late the holder of a topic's scheduling lease may be before another may take it, and
-- when the topic is looked at for processes that are gone.
--
-- Uses     now
-- CONSTANTS
--   usual_grace = 1000  ms
--   short_grace = 50    ms, in a topic that may have groups with SingleActive
--   gone_grace = 50     ms, if the server does not hear the holder
--   look_each = 800     ms between two looks, while messages are leased
--   mute_for = 60000    ms until the next look, if the server does not say who listens
--
-- Defines  usual_grace, short_grace, gone_grace, look_each, mute_for, look_of(text)

-- Returns when the next look is, by the field look: now, if the server's clock has gone back since.
-- Returns nil if there is none.
local function look_of(text)
  local at = tonumber(text or nil)
  return at and (at > now + mute_for and now or at)
end
