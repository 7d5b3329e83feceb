-- freed: has the scheduler wake those of a group that wait for its limit.
--
-- Uses     now, limits, stats
-- Defines  freed(group), count_wait(group)

-- Follows the end of leases, or another limit. The next promotion wakes as many as may claim.
-- Returns when that is to be, in ms, or nil if nobody has waited for a limit of the group.
local function freed(group)
  local state = redis.call('HGET', limits, group)
  if not state then return end
  redis.call('HSET', limits, group, (string.gsub(state, '^(%S+) %d+', '%1 ' .. string.format('%d', now), 1)))
  return now
end

-- Adds to stats for how long messages have waited for the limit so far.
local function count_wait(group)
  local before, since, after = string.match(redis.call('HGET', limits, group) or '', '^(%S+ %d+ %d+) (%d+) (.*)$')
  if since and since ~= '0' then
    redis.call('HINCRBY', stats, 'limited_ms', math.max(now - since, 0))
    redis.call('HSET', limits, group, before .. ' 0 ' .. after)
  end
end
