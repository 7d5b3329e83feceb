-- came: finds what came into a ready list while a caller looked through it.
--
-- Uses     group_count, id_length
-- Defines  came(ready, stats, returned, last)

-- The entries of a ready list that are read at either end.
local most = math.max(50, math.floor(4000 / math.max(4, group_count)))

-- Returns a set of the ids that came into a group's ready list since the caller took its marks, and
-- whether they are all. The marks are the group's number of returned messages, and the last entry.
-- Messages that were put back are in front; new ones are behind the entry that was the last.
local function came(ready, stats, returned, last)
  local ids = {}
  local length = redis.call('LLEN', ready)
  local front = tonumber(redis.call('HGET', stats, 'returned') or 0) - tonumber(returned)
  if front < 0 or front > most then
    return ids, false
  end
  if front > 0 then
    for _, entry in ipairs(redis.call('LRANGE', ready, 0, front - 1)) do
      ids[string.sub(entry, 1, id_length)] = true
    end
  end
  if redis.call('LRANGE', ready, -1, -1)[1] == last then
    return ids, true
  end
  local tail = redis.call('LRANGE', ready, -most, -1)
  for i = #tail, 1, -1 do
    if tail[i] == last then
      return ids, true
    end
    ids[string.sub(tail[i], 1, id_length)] = true
  end
  return ids, length <= most
end
