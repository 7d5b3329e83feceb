-- pause: stops the claims of a topic or of one of its groups.
--
-- KEYS  1 meta       hash: layout, groups (the version of the group set)
--       2 groups     hash: group -> options
--       3 paused     hash: group, or "" for the topic -> "<ms since when> <by> <why>"
--       4 resumes    zset: group, or "" for the topic -> ms at which its pause ends
--       5 scheduler  hash: next, holder, standby, until
-- ARGV  1 group      or "" for the topic
--       2 for        ms from now to the end of the pause; "" if only resume ends it
--       3 by         who pauses, without spaces
--       4 why        any text
--
-- A group or topic that does not exist is not paused: one of that name that is made later should
-- not begin with a pause. A second pause keeps since when, and replaces all else.
-- Returns {since, until} in ms as text, until "" if there is none, or {"unregistered"} if there is
-- no such group or topic.
-- Twice: the second run keeps since when, and puts the end off by the time in between.

local meta, groups, paused, resumes, scheduler = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local group, lasts, by, why = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

--@use now post schedule

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
