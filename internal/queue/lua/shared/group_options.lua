-- group_options: reads the settings of a group, as GroupOptions writes them.
--
-- Defines  read_options(text)

-- Returns the settings as a table, or nil if there is no text, because there is no such group.
-- max_deliveries, retention in ms and max_dead are -1 without a limit. single tells whether the
-- group has SingleActive.
local function read_options(text)
  if not text then return end
  local max_deliveries, retention, max_dead, rest = string.match(text, '^(%S+) (%S+) (%S+)(.*)$')
  local single = string.find(rest or '', ' single', 1, true) and true or false
  max_deliveries, retention = tonumber(max_deliveries or nil) or -1, tonumber(retention or nil) or -1
  max_dead = tonumber(max_dead or nil) or -1
  return {max_deliveries = max_deliveries, retention = retention, max_dead = max_dead, single = single}
end
