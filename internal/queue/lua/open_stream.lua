-- open_stream: prepares a topic whose due messages go into a stream, and reads its set of groups.
--
-- KEYS
--   meta       hash: layout, groups (the version of the group set), maxlen (entries that the
--              stream keeps)
--   groups     hash: group -> options
--   messages   hash: id -> body
--   pending    zset: id -> due ms
--   scheduler  hash: next, holder, standby, until
--   idle       zset: group with an expiry -> ms at which it is removed; 0: it is now
-- ARGV
--   layout       text: of topics without a stream
--   with_stream  text: the layout of topics with one
--   fresh        text: a fresh random version for a changed set
--   group        text: that stands for the stream
--   options      text: of the group, as the snippet group_options reads them
--   maxlen       text: about how many entries the stream keeps; 0 for all
--
-- A new topic becomes one with a stream. So does a topic without messages and groups, none of which
-- is being removed. Its version changes, so that processes that know it as another topic find out.
-- Any other topic stays as it is. The caller refuses a layout that is not that of a stream.
-- Returns
-- REPLY
--   layout   text: of the topic
--   version  text: of the group set
-- REPLY of each group
--   name  text: also of the window
-- Twice: the second run finds the topic and only reads.

--@use now post grace schedule

local found = redis.call('HMGET', meta, 'layout', 'groups', 'maxlen')
local names = redis.call('HKEYS', groups)
local known = redis.call('HGET', groups, group)
local held = redis.call('HLEN', messages) + redis.call('ZCARD', pending) + redis.call('ZCOUNT', idle, '-inf', 0)
local empty = #names == 0 and held == 0

if found[1] and found[1] ~= with_stream and not (found[1] == layout and empty) then
  local reply = {found[1], found[2] or ''}
  for _, name in ipairs(names) do
    reply[#reply + 1] = name
  end
  return reply
end
local whole = found[1] == with_stream and found[2] and known
if whole then
  if known == options and found[3] == maxlen then
    return {found[1], found[2], group}
  end
  -- The first write deletes nothing. After a deletion, a script may write at maxmemory too.
  redis.call('HDEL', scheduler, '')
else
  found[2] = fresh
end
redis.call('HSET', meta, 'layout', with_stream, 'groups', found[2], 'maxlen', maxlen)
redis.call('HSET', groups, group, options)
schedule(now) -- with lower limits, dead messages are forgotten earlier
return {with_stream, found[2], group}
