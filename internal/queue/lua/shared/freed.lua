-- freed: has the scheduler wake those of a group that wait for its limit.
--
-- Uses     now, limits
-- Defines  freed(group)

-- Follows the end of leases, or another limit. The next promotion wakes as many as may claim.
-- Returns when that is to be, in ms, or nil if the group has leased nothing with a limit yet.
local function freed(group)
  local state = redis.call('HGET', limits, group)
  if not state then return end
  redis.call('HSET', limits, group, (string.gsub(state, '^(%S+) %d+', '%1 ' .. string.format('%d', now), 1)))
  return now
end
