-- group_options: reads the settings of a group, as GroupOptions writes them.
--
-- Defines  read_options(text)

-- Returns the settings as a table, or nil if there is no text, because there is no such group.
-- max_deliveries, retention in ms and max_dead are -1 without a limit. single tells whether the
-- group has SingleActive.
local function read_options(text)
  if not text then return end
  local max_deliveries, retention, max_dead, rest = string.match(text, '^(%S+) (%S+) (%S+)(.*)$')
  return {
    max_deliveries = tonumber(max_deliveries or nil) or -1,
    retention = tonumber(retention or nil) or -1,
    max_dead = tonumber(max_dead or nil) or -1,
    single = string.find(rest or '', ' single', 1, true) and true or false,
  }
end
