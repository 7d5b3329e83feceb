-- free_names: forgets delay ids whose time has come.
--
-- Uses     names, taken, now
-- Defines  free_names(first)

-- Forgets a thousand delay ids at most: a publisher finds the others free without that. Takes the
-- first delay id of taken and its score, as ZRANGE returns them, and returns those of afterwards.
local function free_names(first)
  if first[1] and tonumber(first[2]) <= now then
    local free = redis.call('ZRANGEBYSCORE', taken, '-inf', now, 'LIMIT', 0, 1000)
    redis.call('HDEL', names, unpack(free))
    redis.call('ZREM', taken, unpack(free))
    first = redis.call('ZRANGE', taken, 0, 0, 'WITHSCORES')
  end
  return first
end
