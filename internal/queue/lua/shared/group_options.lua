-- group_options: reads the settings of a group, as GroupOptions writes them.
--
-- Defines  read_options(text), limit_of(number)

local function limit_of(number)
  return string.find(number, '^%d+$') and tonumber(number) or -1
end

-- Returns the settings as a table, or nil if there is no text, because there is no such group.
-- max_deliveries, retention in ms and max_dead are -1 without a limit. single tells whether the
-- group has SingleActive, and whole whether leases last when their process is gone.
local function read_options(text)
  if not text then return end
  local max_deliveries, retention, max_dead, words = string.match(text, '^(%S*) ?(%S*) ?(%S*)(.*)$')
  local function has(word)
    return string.find(words .. ' ', ' ' .. word .. ' ', 1, true) and true or false
  end
  max_deliveries, retention, max_dead = limit_of(max_deliveries), limit_of(retention), limit_of(max_dead)
  local single, whole = has('single'), has('whole')
  return {max_deliveries = max_deliveries, retention = retention, max_dead = max_dead, single = single, whole = whole}
end
