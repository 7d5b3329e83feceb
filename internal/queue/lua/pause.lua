-- pause: stops the claims of a topic or of one of its groups.
--
-- KEYS  1 meta    hash: layout, groups (the version of the group set)
--       2 groups  hash: group -> options
--       3 paused  hash: group, or "" for the topic -> ms since when
-- ARGV  1 group   or "" for the topic
--
-- A group or topic that does not exist is not paused: one of that name that is made later should
-- not begin with a pause.
-- Returns since when it is paused, in ms as text, or "unregistered" if there is no such group or
-- topic.
-- Twice: the second run finds the pause and returns since when.

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
-- The first write deletes nothing. After a deletion, a script may write at maxmemory too.
redis.call('HDEL', meta, '')
redis.call('HSET', paused, group, since)
return since
