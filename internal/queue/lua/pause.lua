-- pause: stops the claims of a topic or of one of its groups.
--
-- KEYS
--   meta       hash: layout, groups (the version of the group set)
--   groups     hash: group -> options
--   paused     hash: group, or "" for the topic -> "<ms since when> <by> <why>"
--   resumes    zset: group, or "" for the topic -> ms at which its pause ends
--   scheduler  hash: next, holder, standby, until
-- ARGV
--   group  text: or "" for the topic
--   lasts  text: ms from now to the end of the pause; "" if only resume ends it
--   by     text: who pauses, without spaces
--   why    text: any text
--
-- A group or topic that does not exist is not paused: one of that name that is made later should
-- not begin with a pause. A second pause keeps since when, and replaces all else.
-- Returns {"unregistered"} if there is no such group or topic, else
-- REPLY
--   since     text: ms
--   until_ms  text: "" if the pause has no end
-- Twice: the second run keeps since when, and puts the end off by the time in between.

--@use now post grace schedule

local there = redis.call('HEXISTS', meta, 'groups')
local known = redis.call('HEXISTS', groups, group)
if there == 0 or (group ~= '' and known == 0) then
  return {'unregistered'}
end
local since = string.match(redis.call('HGET', paused, group) or '', '^%d+') or string.format('%d', now)
redis.call('ZCARD', resumes)
-- The first write deletes nothing. After a deletion, a script may write at maxmemory too.
redis.call('HDEL', meta, '')
redis.call('HSET', paused, group, since .. ' ' .. by .. ' ' .. why)
if lasts == '' then
  redis.call('ZREM', resumes, group)
  return {since, ''}
end
local ends = now + lasts
redis.call('ZADD', resumes, string.format('%d', ends), group)
schedule(ends)
return {since, string.format('%d', ends)}
