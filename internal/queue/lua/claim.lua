-- claim: leases ready messages of a group to a subscription, oldest first.
--
-- KEYS  1 groups      hash: group -> options
--       2 messages    hash: id -> body
--       3 ready       list of "id:due"
--       4 unack       zset: id -> lease deadline ms, its fraction the place among those of one ms
--       5 leases      hash: id -> "subscription:claim:due", the lease's token
--       6 deliveries  hash: id -> "count flag delayed_for", only after a first delivery ended
--       7 waiters     zset: address of an idle subscription -> deadline ms
--       8 claim       string: this subscription's last claim, "number id:due ...", expiring
--       9 scheduler   hash: next, holder, standby, until
--      10 idle        zset: group that is removed when unused -> ms at which it is
-- ARGV  1 group
--       2 subscription
--       3 number      of this claim, counted by the subscription
--       4 limit       messages at most (at most 1000); 0: the subscription can take none, is not to
--                     be woken, and passes on the wake-up that it may have had
--       5 busy        "1" if the subscription holds other messages
--       6 lease       ms
--       7 slots       messages that the subscription could hand out at once
--       8 address     to be woken at if that is more than are ready
--       9 patience    how long the address stays valid, ms
--      10 bytes       of bodies at most, the first message excepted
--      11 memory      how long the claim is remembered, ms
--      12 single      "1" if PUBLISH counts every receiver (not on a cluster)
--      13 expiry      ms without use after which the group is removed, or "": never
--
-- A message whose lease has expired before (flag "s", suspect) is claimed alone, and only by a
-- subscription that holds nothing else.
-- Returns {"unregistered"} if the group does not exist, else {"ok", left, blocked, waits,
-- orphans, then id, due, record, body for each message}: left is 1 if more is ready; blocked is 1 if
-- a suspect waits for the subscription to be free; waits is 1 if the subscription will be woken;
-- orphans counts ids that had no body and were dropped.
-- Twice: the same number returns those messages of the first run that are still leased by it.

local groups, messages, ready, unack, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local deliveries, waiters, claim, scheduler, idle = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local group, subscription, number, limit = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local busy, lease, slots, address = ARGV[5] == '1', tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local patience, bytes, memory, single = tonumber(ARGV[9]), tonumber(ARGV[10]), ARGV[11], ARGV[12] == '1'
local expiry = ARGV[13]
local id_length = 26

local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

-- Has the topic's scheduler look no later than at event; the standby a second after.
local function schedule(event)
  local s = redis.call('HMGET', scheduler, 'next', 'holder', 'standby')
  if s[1] and tonumber(s[1]) <= event then return end
  redis.call('HSET', scheduler, 'next', string.format('%.0f', event))
  local wait = event - now
  for i = 2, 3 do
    if s[i] then
      local channel, receiver = string.match(s[i], '^(.*)|(.*)$')
      redis.pcall('PUBLISH', channel, receiver .. ' ' .. string.format('%.0f', wait))
    end
    wait = wait + 1000
  end
end

-- Wakes up to n idle subscriptions of a group, passing over those that are gone.
local function wake(waiters, n)
  redis.call('ZREMRANGEBYSCORE', waiters, '-inf', now)
  while n > 0 do
    local popped = redis.call('ZPOPMIN', waiters, n)
    n = 0
    for i = 1, #popped, 2 do
      local channel, receiver = string.match(popped[i], '^(.*)|(.*)$')
      if redis.pcall('PUBLISH', channel, receiver) == 0 and single then
        n = n + 1
      end
    end
  end
end

if redis.call('HEXISTS', groups, group) == 0 then
  return {'unregistered'}
end

local last = redis.call('GET', claim)
if last and limit > 0 and string.match(last, '^%d+') == number then
  local ids, dues = {}, {}
  for id, due in string.gmatch(last, ' ([^ :]+):(%d+)') do
    ids[#ids + 1], dues[#dues + 1] = id, due
  end
  local tokens = redis.call('HMGET', leases, unpack(ids))
  local reply = {'ok', redis.call('LLEN', ready) > 0 and 1 or 0, 0, 0, 0}
  for i, id in ipairs(ids) do
    if tokens[i] == subscription .. ':' .. number .. ':' .. dues[i] then
      reply[#reply + 1] = id
      reply[#reply + 1] = dues[i]
      reply[#reply + 1] = redis.call('HGET', deliveries, id) or ''
      reply[#reply + 1] = redis.call('HGET', messages, id) or ''
    end
  end
  return reply
end

-- Reading every key that will be written finds a key of a wrong type before anything is.
redis.call('HLEN', leases)
redis.call('HLEN', scheduler)
if expiry ~= '' then
  redis.call('ZCARD', idle)
end
local waiting = redis.call('ZCARD', waiters)
-- What was claimed or extended within this millisecond is in front.
local deadline = string.format('%.0f', now + lease)
local place = redis.call('ZCOUNT', unack, deadline, '(' .. string.format('%.0f', now + lease + 1))
local left = redis.call('LLEN', ready)

local entries = {}
if limit > 0 and left > 0 then
  entries = redis.call('LRANGE', ready, 0, limit - 1)
end

local ids = {}
for i, entry in ipairs(entries) do
  ids[i] = string.sub(entry, 1, id_length)
end

local allowed, blocked, records = 0, 0, {}
if #ids > 0 then
  records = redis.call('HMGET', deliveries, unpack(ids))
  allowed = #ids
  for i = 1, #ids do
    if records[i] and string.match(records[i], '^%d+ (%S+)') == 's' then
      if i > 1 then
        allowed = i - 1
      elseif busy then
        allowed, blocked = 0, 1
      else
        allowed = 1
      end
      break
    end
  end
end

local reply = {'ok', 0, blocked, 0, 0}
local scores, tokens, taken = {}, {}, {number}
local orphans, consumed, size, full = {}, 0, 0, false
while consumed < allowed and not full do
  local upto = math.min(consumed + 32, allowed)
  local bodies = redis.call('HMGET', messages, unpack(ids, consumed + 1, upto))
  for i, body in ipairs(bodies) do
    local id = ids[consumed + 1]
    if body and size > 0 and size + #body > bytes then
      full = true
      break
    end
    local entry, record = entries[consumed + 1], records[consumed + 1]
    consumed = consumed + 1
    if body then
      size = size + #body
      local due = string.sub(entry, id_length + 2)
      scores[#scores + 1] = now + lease + math.min(place + #taken - 1, 1023) / 1024
      scores[#scores + 1] = id
      tokens[#tokens + 1] = id
      tokens[#tokens + 1] = subscription .. ':' .. number .. ':' .. due
      taken[#taken + 1] = entry
      reply[#reply + 1] = id
      reply[#reply + 1] = due
      reply[#reply + 1] = record or ''
      reply[#reply + 1] = body
    else
      orphans[#orphans + 1] = id
    end
  end
end
reply[5] = #orphans

-- The first write is a deletion: at maxmemory a claim still works.
if consumed > 0 then
  redis.call('LPOP', ready, consumed)
  left = left - consumed
  if #orphans > 0 then
    redis.call('HDEL', deliveries, unpack(orphans))
  end
else
  redis.call('DEL', claim)
end
if expiry ~= '' then
  redis.call('ZADD', idle, now + expiry, group)
end
if #tokens > 0 then
  redis.call('ZADD', unack, unpack(scores))
  redis.call('HSET', leases, unpack(tokens))
  redis.call('SET', claim, table.concat(taken, ' '), 'PX', memory)
  schedule(now + lease)
end
if limit == 0 then
  redis.call('ZREM', waiters, address)
end
if left > 0 then
  reply[2] = 1
  if waiting > 0 then
    wake(waiters, 1)
  end
elseif #taken - 1 < slots then
  redis.call('ZREMRANGEBYSCORE', waiters, '-inf', now)
  redis.call('ZADD', waiters, now + patience, address)
  reply[4] = 1
end
return reply
