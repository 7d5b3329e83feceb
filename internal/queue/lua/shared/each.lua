-- each: calls a command that takes a list of any length.
--
-- Defines  each(command, key, list, first, last)

-- Calls the command with list[first] to list[last], in parts that Lua can unpack.
local function each(command, key, list, first, last)
  for i = first, last, 1000 do
    redis.call(command, key, unpack(list, i, math.min(i + 999, last)))
  end
end
