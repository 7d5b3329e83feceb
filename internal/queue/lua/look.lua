-- look: reads a topic's set of groups.
--
-- KEYS  1 meta    hash: layout, groups (the version of the group set)
--       2 groups  hash: group -> options
--
-- The caller refuses a layout other than its own.
-- Returns {layout, version, group, ...}, or {} if there is no such topic.
-- Twice: it only reads.

local meta, groups = KEYS[1], KEYS[2]

local found = redis.call('HMGET', meta, 'layout', 'groups')
if not found[1] or not found[2] then
  return {}
end
local reply = {found[1], found[2]}
for _, name in ipairs(redis.call('HKEYS', groups)) do
  reply[#reply + 1] = name
end
return reply
