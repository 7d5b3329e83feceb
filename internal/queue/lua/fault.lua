-- fault: notes why a scheduler cannot do a topic's due-time work.
--
-- KEYS
--   meta       hash: layout, groups
--   scheduler  hash: next, holder, standby, until, fault ("<ms> <error>")
-- ARGV
--   err  text: of the scheduler, bounded by the caller
--
-- The next promotion that leaves no work deletes the note.
-- Returns 1, or 0 if the topic does not exist.
-- Twice: the second run writes the same error with a later time.

--@use now

if redis.call('HEXISTS', meta, 'layout') == 0 then
  return 0
end
redis.call('HDEL', scheduler, '') -- the first write is a deletion: it works at maxmemory
redis.call('HSET', scheduler, 'fault', string.format('%d ', now) .. err)
return 1
