-- open: prepares a topic on its first use, and reads its set of groups.
--
-- KEYS
--   meta    hash: layout, groups (the version of the group set)
--   groups  hash: group -> options
-- ARGV
--   layout  text: the layout version that the caller writes
--   fresh   text: a fresh random version, used if the topic is new
--
-- The caller refuses a layout other than its own.
-- Returns
-- REPLY
--   layout   text: of the topic
--   version  text: of the group set
-- REPLY of each group
--   name  text: also of the window
-- Twice: the second run finds the topic and only reads.

local names = redis.call('HKEYS', groups)
local found = redis.call('HMGET', meta, 'layout', 'groups')
if not found[1] or not found[2] then
  found = {found[1] or layout, fresh}
  redis.call('HSET', meta, 'layout', found[1], 'groups', found[2])
end

local reply = {found[1], found[2]}
for _, name in ipairs(names) do
  reply[#reply + 1] = name
end
return reply
