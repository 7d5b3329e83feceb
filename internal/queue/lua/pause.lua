-- pause: stops the claims of a topic, or of one of its groups.
--
-- KEYS  1 meta    hash: layout, groups (the version of the group set)
--       2 groups  hash: group -> options
--       3 paused  hash: group, or "" for the topic -> ms since when
-- ARGV  1 group   or "" for the topic
--
-- Returns since when it is paused, in ms as text, or "unregistered" if there is no such group or topic: a topic of
-- that name that somebody makes later is not to begin with a pause.
-- Twice: the second run finds it paused, and returns since when.

local meta, groups, paused = KEYS[1], KEYS[2], KEYS[3]
local group = ARGV[1]

--@use now

local there = redis.call('HEXISTS', meta, 'groups')
local known = redis.call('HEXISTS', groups, group)
if there == 0 or (group ~= '' and known == 0) then
  return 'unregistered'
end
local since = redis.call('HGET', paused, group)
if since then
  return since
end
since = string.format('%d', now)
-- The first write is a deletion, of nothing: at maxmemory it still works.
redis.call('HDEL', meta, '')
redis.call('HSET', paused, group, since)
return since
