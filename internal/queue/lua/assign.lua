-- assign: sets the limit or the history of a group for all its subscribers, whatever they ask for.
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
--   word    text: "set" for the limit, "set_history" for the history
--   value   text: "rate:burst:at_once", with 0 for each that is not limited, or "ms:number", with 0
--           for no history; "" for what the last subscriber asked for
--
-- It lasts until another call, also when the group is registered again. The first limit or history
-- of a topic marks its layout. Those who wait for the old limit are woken.
-- Returns {"unregistered"} if there is no such group, {"mode"} if the topic has a stream, else
-- REPLY
--   before  text: options of the group
--   after   text: options of the group
-- Twice: the second run finds it set, and wakes those who wait once more.

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
local after = string.gsub(before, ' ' .. word .. ':%S+', '') .. (value ~= '' and ' ' .. word .. ':' .. value or '')
redis.call('HDEL', scheduler, '') -- the first write is a deletion: it works at maxmemory
local marked = marked_for(found[1], read_options(after))
if marked ~= found[1] then
  redis.call('HSET', meta, 'layout', marked, 'groups', fresh)
end
redis.call('HSET', groups, group, after)
schedule(freed(group))
count_wait(group)
return {before, after}
