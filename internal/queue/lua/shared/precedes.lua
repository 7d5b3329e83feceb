-- precedes: compares ids.
--
-- Defines  precedes(a, b)

-- Tells whether the id a comes before the id b where Redis sorts them, which is by their bytes. The
-- operator < of Lua compares by the locale of the server. In base 36, ten letters make a number
-- that is exact.
local function precedes(a, b)
  for i = 1, #b, 10 do
    local x, y = string.sub(a, i, i + 9), string.sub(b, i, i + 9)
    if x ~= y then
      return (tonumber(x, 36) or 0) < (tonumber(y, 36) or 0)
    end
  end
  return false
end
