-- count_wait: counts for how long messages have waited for the limit of a group.
--
-- Uses     now, limits, stats
-- Defines  count_wait(group)

-- Adds to stats for how long messages have waited for the limit so far.
local function count_wait(group)
  local before, since, after = string.match(redis.call('HGET', limits, group) or '', '^(%S+ %d+ %d+) (%d+) (.*)$')
  if since and since ~= '0' then
    redis.call('HINCRBY', stats, 'limited_ms', math.max(now - since, 0))
    redis.call('HSET', limits, group, before .. ' 0 ' .. after)
  end
end
