-- whole: knows how long the history of the whole topic is kept.
--
-- Uses     groups, read_options
-- Defines  whole_bounds()

-- Returns "<ms>:<number>", the largest that any group has, or nil if no group keeps a history.
local function whole_bounds()
  local longest, most = 0, 0
  local names = redis.call('HKEYS', groups)
  local all = #names > 0 and redis.call('HMGET', groups, unpack(names)) or {}
  for i = 1, #all do
    local ms, number = string.match(read_options(all[i]).history or '', '^(%d+):(%d+)$')
    longest, most = math.max(longest, ms or 0), math.max(most, number or 0)
  end
  return longest > 0 and string.format('%d:%d', longest, most)
end
