-- due_at: reads the first scores of a zset.
--
-- Defines  due_at(key, n)

-- Returns the score of the first member behind n others, or nil if there is none.
local function due_at(key, n)
  return tonumber(redis.call('ZRANGE', key, n, n, 'WITHSCORES')[2] or nil)
end
