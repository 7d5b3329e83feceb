-- heard: asks the server which processes listen to it.
--
-- Defines  listeners(channel), history()
--
-- A server that does not say, because of its version or the user's rights, gives nil.

local heard_by = {} -- by channel, since many subscriptions have one process
local name_of_history

-- Returns how many connections listen on a channel. A channel with a brace is a sharded one.
local function listeners(channel)
  if heard_by[channel] then
    return heard_by[channel]
  end
  local which = string.find(channel, '{', 1, true) and 'SHARDNUMSUB' or 'NUMSUB'
  local found = redis.pcall('PUBSUB', which, channel)
  heard_by[channel] = not found.err and tonumber(found[2]) or nil
  return heard_by[channel]
end

-- Returns the name of the server's history. It changes when the server starts anew, and when a
-- replica takes over.
local function history()
  local info = not name_of_history and redis.pcall('INFO', 'replication')
  name_of_history = name_of_history or type(info) == 'string' and string.match(info, 'master_replid:(%w+)') or nil
  return name_of_history
end
