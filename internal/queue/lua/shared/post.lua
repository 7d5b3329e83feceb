-- post: publishes to an address, which is "<channel>|<receiver>".
--
-- Defines  post(address, argument)

-- Publishes the receiver, and the argument unless that is nil. Returns the number of connections on
-- the channel, 0 after an error. A channel with a brace is a sharded one. A text that is no address
-- is ignored.
local function post(address, argument)
  local channel, receiver = string.match(address, '^(.*)|(.*)$')
  if not channel then return 0 end
  local text = argument and receiver .. ' ' .. argument or receiver
  local heard
  if string.find(channel, '{', 1, true) then
    heard = redis.pcall('SPUBLISH', channel, text)
  else
    heard = redis.pcall('PUBLISH', channel, text)
  end
  return tonumber(heard) or 0
end
