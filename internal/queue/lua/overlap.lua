-- overlap: keeps which occurrence of a recurring schedule a group handles.
--
-- KEYS  1 handling  string: "<occurrence> <token> <ms until which that is valid>", expiring
-- ARGV  1 what      "begin", "extend" or "end"
--       2 occurrence
--       3 token     of this handling
--       4 lease     ms for which it is valid
--
-- Another handling of the same occurrence takes over, because the lease of its message was lost.
-- Returns 1, or 0 if another occurrence is handled ("begin"), or this handling was lost.
-- Twice: the second run does the same once more. A second "end" finds nothing.

local handling = KEYS[1]
local what, occurrence, token, lease = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

--@use now

local others, other, valid = string.match(redis.call('GET', handling) or '', '^(%S+) (%S+) (%d+)$')
local lives = valid and tonumber(valid) > now
if what == 'begin' and lives and others ~= occurrence then
  return 0
elseif what ~= 'begin' and other ~= token then
  return 0
elseif what == 'end' then
  redis.call('DEL', handling)
  return 1
end
redis.call('SET', handling, occurrence .. ' ' .. token .. ' ' .. string.format('%d', now + lease), 'PX', lease * 2)
return 1
