-- resign: gives up the topic's scheduling lease, or the place as its standby.
--
-- KEYS
--   scheduler  hash: next, holder, standby, until
-- ARGV
--   me  text: address of the caller
--
-- If the holder resigns, the standby is told to look at once.
-- Returns 1 if the caller had a role, else 0.
-- Twice: the second run finds no role and changes nothing.

--@use post

local s = redis.call('HMGET', scheduler, 'holder', 'standby')
if s[1] == me then
  redis.call('HDEL', scheduler, 'holder')
  if s[2] then
    post(s[2], '0')
  end
  return 1
end
if s[2] == me then
  redis.call('HDEL', scheduler, 'standby', 'until')
  return 1
end
return 0
