-- look: reads a topic's set of groups.
--
-- KEYS
--   meta    hash: layout, groups (the version of the group set)
--   groups  hash: group -> options
--
-- The caller refuses a layout other than its own.
-- Returns {} if there is no such topic, else
-- REPLY
--   layout   text: of the topic
--   version  text: of the group set
-- REPLY of each group
--   name  text: also of the window
-- Twice: it only reads.

local found = redis.call('HMGET', meta, 'layout', 'groups')
if not found[1] or not found[2] then
  return {}
end
local reply = {found[1], found[2]}
for _, name in ipairs(redis.call('HKEYS', groups)) do
  reply[#reply + 1] = name
end
return reply
