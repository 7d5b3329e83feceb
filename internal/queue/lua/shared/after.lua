-- after: finds a place in a zset while members come and go.
--
-- Uses     precedes
-- Defines  after(key, score, id)

-- Returns the rank of the first member behind the score and the id, whether that member is there or
-- not.
local function after(key, score, id)
  local low = redis.call('ZCOUNT', key, '-inf', '(' .. score)
  local high = low + redis.call('ZCOUNT', key, score, score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if not precedes(id, redis.call('ZRANGE', key, middle, middle)[1]) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end
