-- single: puts one of two entries out of force that ready has of the same message.
--
-- KEYS  1 ready  list of "id:due"
--       2 stats  hash: what was counted so far
-- ARGV  1 id      of the message
--       2 first, 3 second  places of the two at some time, from the right end, 0 being the last
--       4 most    entries that may have come behind since
--
-- No script looks through all of ready, and to take an entry out of its midst does that. So the later of the two
-- becomes an entry of nobody, whose id is all zeros, and the claim that comes to it drops it. Places from the
-- right only grow, by what comes behind.
-- Returns 1, or 0 if they are not both there.
-- Twice: the second run finds only one of them.

local ready, stats = KEYS[1], KEYS[2]
local id, first, second, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

--@use id_length

-- The place of the id, at or left of the one where it was and right of another; nil if it is not there.
local function find(place, left)
  local entries = redis.call('LRANGE', ready, -1 - place - most, -1 - place)
  for i = #entries, 1, -1 do
    local at = place + #entries - i
    if string.sub(entries[i], 1, id_length) == id and (not left or at > left) then
      return at, string.sub(entries[i], id_length + 1)
    end
  end
end

-- Reading every key that will be written finds a key of a wrong type before anything is.
redis.call('HLEN', stats)
local later, due = find(first)
if not later or not find(second, later) then
  return 0
end
redis.call('HDEL', stats, '') -- a deletion, of nothing: at maxmemory it still works
redis.call('LSET', ready, -1 - later, nobody .. due)
return 1
