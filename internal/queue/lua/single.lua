-- single: puts one of two entries that ready has of a message out of force.
--
-- KEYS
--   ready  list: "id:due"
--   stats  hash: counters and times of the group
-- ARGV
--   id      text: of the message
--   first   number: position of one of the two at some time, from the right end, which is 0
--   second  number: that of the other
--   most    number: entries that may have come behind since
--
-- To take an entry out of the middle of ready would search all of it, which no script does. So the
-- later entry gets an id of zeros, and the claim that comes to it drops it. A position from the
-- right can only grow, by the entries that come behind.
-- Returns 1, or 0 if not both are there.
-- Twice: the second run finds only one of them.

--@use id_length

-- Returns the position of the id and the rest of its entry. The position is not right of place,
-- where it was, and not right of left or at it. Returns nil if the id is not there.
local function find(place, left)
  local entries = redis.call('LRANGE', ready, -1 - place - most, -1 - place)
  for i = #entries, 1, -1 do
    local at = place + #entries - i
    if string.sub(entries[i], 1, id_length) == id and (not left or at > left) then
      return at, string.sub(entries[i], id_length + 1)
    end
  end
end

-- Read every key that is written later: one of a wrong type is found before the first write.
redis.call('HLEN', stats)
local later, due = find(first)
if not later or not find(second, later) then
  return 0
end
-- The first write deletes nothing. After a deletion, a script may write at maxmemory too.
redis.call('HDEL', stats, '')
redis.call('LSET', ready, -1 - later, nobody .. due)
return 1
