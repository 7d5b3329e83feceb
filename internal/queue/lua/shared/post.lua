-- post: publishes to an address, which is "<channel>|<receiver>".
--
-- Defines  post(address, argument)

-- Publishes the receiver, and the argument unless that is nil. Returns the number of connections on
-- the channel, nil after an error, and whether the channel is a sharded one, which has a brace. A
-- text that is no address is ignored.
local function post(address, argument)
  local channel, receiver = string.match(address, '^(.*)|(.*)$')
  if not channel then return end
  local text = argument and receiver .. ' ' .. argument or receiver
  local heard
  local sharded = string.find(channel, '{', 1, true)
  if sharded then
    heard = redis.pcall('SPUBLISH', channel, text)
  else
    heard = redis.pcall('PUBLISH', channel, text)
  end
  return tonumber(heard), sharded
end
