-- watch: looks for subscriptions whose processes are gone.
--
-- KEYS
--   meta       hash: layout, groups (the version of the group set)
--   groups     hash: group -> options
--   scheduler  hash: next, holder, standby, until, look (ms of the next look)
-- KEYS of each group
--   workers  hash: subscription -> "since seen until heard gone who address"
--   leases   hash: id -> "subscription:claim:since:due", the lease's token
-- ARGV
--   version  text: of the group set that KEYS were made from
--   me       text: address of the caller
--   from     number: of the group where to go on; 1 at the beginning
--   cursor   text: where to go on with its workers; "0" at the beginning
--   budget   number: of subscriptions to look at, about
-- ARGV of each group
--   name  text:
--
-- The server knows at once when a process ends, because it closes its connections. The first look
-- that finds a subscription without a listener notes that as gone. A look gone_for later names it,
-- so that its leases can be ended by disown. A look that finds a listener, or that the server has
-- another history, takes the note back, as a sign of life does. Subscriptions of groups without
-- leases, or with whole ones, are not looked at. If nobody stands by, one other process that the
-- server hears is called, so that its scheduler does.
-- Returns {"stale"} when the group set has changed, else
-- REPLY
--   ok      text: "ok"
--   from    number: for the next call; 0 when all were looked at
--   cursor  text: for the next call
--   mute    number: 1 if the server does not say who listens
--   again   number: ms until the next look, if that is earlier than it was; else 0
--   gone    list: group, subscription and note, in turn, of those whose processes have been gone
--           for so long
-- Twice: the second run finds what the first has noted, and changes nothing.

--@use now grace heard post note absent group_options

if redis.call('HGET', meta, 'groups') ~= version then
  return {'stale'}
end
-- Read every key that is written later: one of a wrong type is found before the first write.
for g = from, group_count do
  --@each group g workers leases
  redis.call('HLEN', workers)
  redis.call('HLEN', leases)
end
redis.call('HDEL', scheduler, '') -- the first write is a deletion: it works at maxmemory
local mine = string.match(me, '^(.*)|') or ''
if not (listeners(mine) and history()) then
  redis.call('HSET', scheduler, 'look', string.format('%d', now + mute_for))
  return {'ok', 0, '0', 1, 0, {}}
end
local s = redis.call('HMGET', scheduler, 'look', 'standby')
local next_look, vacant = look_of(s[1]), not s[2] or listeners(string.match(s[2], '^(.*)|') or '') == 0

local gone, ends = {}, math.huge -- when the next one has been gone for long enough

-- Looks at one subscription.
local function look_at(workers, name, subscription, text)
  local note = read_note(text)
  if not note then return end
  if not absent(note) then
    if note.gone > 0 and note.heard ~= '-' then
      redis.call('HSET', workers, subscription, write_note(note, note.heard, 0))
    end
    local process = string.match(note.address, '^(.*)|')
    if vacant and process and process ~= mine and listeners(process) > 0 then
      post(process .. '|*')
      vacant = false
    end
  elseif note.gone == 0 then
    redis.call('HSET', workers, subscription, write_note(note, note.heard, now))
    ends = math.min(ends, now + gone_for)
  elseif now - note.gone < gone_for then
    ends = math.min(ends, note.gone + gone_for)
  else
    gone[#gone + 1], gone[#gone + 2], gone[#gone + 3] = name, subscription, text
  end
end

-- Looks at a part of the workers of a group, and returns where to go on.
local function look_on(workers, name)
  local found = redis.call('HSCAN', workers, cursor, 'COUNT', budget)
  for i = 1, #found[2], 2 do
    look_at(workers, name, found[2][i], found[2][i + 1])
  end
  budget = budget - #found[2] / 2
  return found[1]
end

local g = from
while g <= group_count and budget > 0 do
  --@each group g workers leases name
  local o = redis.call('HLEN', leases) > 0 and read_options(redis.call('HGET', groups, name))
  cursor = o and not o.whole and look_on(workers, name) or '0'
  if cursor == '0' then
    g = g + 1
  end
end
local again = next_look and ends < next_look
if again then
  redis.call('HSET', scheduler, 'look', string.format('%d', ends))
end
return {'ok', g <= group_count and g or 0, cursor, 0, again and ends - now or 0, gone}
