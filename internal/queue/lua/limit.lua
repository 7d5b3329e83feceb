-- limit: sets the limit of a group for all its subscribers, whatever they ask for.
--
-- KEYS
--   meta       hash: layout, groups (the version of the group set), maxlen with a stream
--   groups     hash: group -> options
--   scheduler  hash: next, holder, standby, until
--   limits     hash: group -> state of its limit, "full event woken since last cost"
--   stats      hash: counters and times of the group
-- ARGV
--   layout  text: the layout version that the caller writes
--   fresh   text: a random version for the changed set
--   group   text:
--   limit   text: "rate:burst:at_once", with 0 for each that is not limited; "" for what the last
--           subscriber asked for
--
-- It lasts until another call, also when the group is registered again. The first limit of a topic
-- marks its layout. Those who wait for the old limit are woken.
-- Returns {"unregistered"} if there is no such group, {"mode"} if the topic has a stream, else
-- REPLY
--   before  text: options of the group
--   after   text: options of the group
-- Twice: the second run finds the limit set, and wakes those who wait once more.

--@use now post grace schedule group_options marks freed
--@use count_wait

local found = redis.call('HMGET', meta, 'layout', 'maxlen')
local before = redis.call('HGET', groups, group)
redis.call('HLEN', limits)
redis.call('HLEN', stats)
if not before then
  return {'unregistered'}
end
if found[2] or not is_known(found[1] or '') then
  return {'mode'}
end
local after = string.gsub(before, ' set:%S+', '') .. (limit ~= '' and ' set:' .. limit or '')
redis.call('HDEL', scheduler, '') -- the first write is a deletion: it works at maxmemory
local marked = layout_with(is_marked(found[1], 'single'), is_marked(found[1], 'limits') or read_options(after).limit)
if marked ~= found[1] then
  redis.call('HSET', meta, 'layout', marked, 'groups', fresh)
end
redis.call('HSET', groups, group, after)
schedule(freed(group))
count_wait(group)
return {before, after}
