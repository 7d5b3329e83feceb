-- resign: gives up the topic's scheduling lease, or the place as its standby.
--
-- KEYS  1 scheduler  hash: next, holder, standby, until
-- ARGV  1 me         address of the caller
--
-- A holder that resigns has the standby look at once.
-- Returns 1 if the caller had a role.
-- Twice: the second run finds no role and changes nothing.

local scheduler, me = KEYS[1], ARGV[1]

local s = redis.call('HMGET', scheduler, 'holder', 'standby')
if s[1] == me then
  redis.call('HDEL', scheduler, 'holder')
  if s[2] then
    local channel, receiver = string.match(s[2], '^(.*)|(.*)$')
    redis.pcall('PUBLISH', channel, receiver .. ' 0')
  end
  return 1
end
if s[2] == me then
  redis.call('HDEL', scheduler, 'standby', 'until')
  return 1
end
return 0
