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
--      11 options     hash: id -> options, only of messages that have any
--      12 refs        hash: id -> groups that still need the body, only where several do
--      13 dead        zset: id -> ms at which it died
--      14 paused      hash: group, or "" for the topic -> ms since when
--      15 resting     zset: address of a subscription whose claim was stopped -> deadline ms
--      16 stats       hash: what was counted so far
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
-- While the group or its topic is paused, nothing is leased, and the subscription is woken when that ends.
-- A message for which it is too late by its options is dropped or becomes a dead letter; one call looks at
-- 1,000 messages at most.
-- Returns {"unregistered"} if the group does not exist, else {"ok", left, blocked, waits, orphans,
-- entries, bodies, records}: left is 1 if more is ready; blocked is 1 if a suspect waits for the
-- subscription to be free; waits is 1 if the subscription will be woken; orphans counts ids that had no
-- body and were dropped. The rest are lists, with a part for each message; records is empty if no message
-- of the group has one.
-- Twice: the same number returns those messages of the first run that are still leased by it.

local groups, messages, ready, unack, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local deliveries, waiters, claim, scheduler, idle = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local options, refs, dead, paused, resting, stats = KEYS[11], KEYS[12], KEYS[13], KEYS[14], KEYS[15], KEYS[16]
local group, subscription, number, limit = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local busy, lease, slots, address = ARGV[5] == '1', tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local patience, bytes, memory, single = tonumber(ARGV[9]), tonumber(ARGV[10]), ARGV[11], ARGV[12] == '1'
local expiry = ARGV[13]
local id_length = 26
local long = string.rep('-', 65)

local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

-- Has the topic's scheduler look no later than at event; the standby a second after.
local function schedule(event)
  local s = redis.call('HMGET', scheduler, 'next', 'holder', 'standby')
  if s[1] and tonumber(s[1]) <= event then return end
  redis.call('HSET', scheduler, 'next', string.format('%d', event))
  local wait = event - now
  for i = 2, 3 do
    if s[i] then
      local channel, receiver = string.match(s[i], '^(.*)|(.*)$')
      redis.pcall('PUBLISH', channel, receiver .. ' ' .. string.format('%d', wait))
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

-- Forgets the bodies that no group needs any more.
local function drop(ids)
  local gone = ids
  if redis.call('HLEN', refs) > 0 then
    gone = {}
    local left = redis.call('HMGET', refs, unpack(ids))
    for i, id in ipairs(ids) do
      if left[i] and tonumber(left[i]) > 1 then
        redis.call('HINCRBY', refs, id, -1)
      else
        gone[#gone + 1] = id
      end
    end
    if #gone == 0 then return end
    redis.call('HDEL', refs, unpack(gone))
  end
  redis.call('HDEL', messages, unpack(gone))
  redis.call('HDEL', options, unpack(gone))
end

local group_options = redis.call('HGET', groups, group)
if not group_options then
  return {'unregistered'}
end

local function ids_of(entries)
  local ids = {}
  for i, entry in ipairs(entries) do
    ids[i] = string.sub(entry, 1, id_length)
  end
  return ids
end
local token = subscription .. ':' .. number -- and ":due", as the entry ends

local last = redis.call('GET', claim)
if last and limit > 0 and string.match(last, '^%d+') == number then
  local entries = {}
  for entry in string.gmatch(last, ' (%S+)') do
    entries[#entries + 1] = entry
  end
  local ids = ids_of(entries)
  local tokens, mine, bodies, records = redis.call('HMGET', leases, unpack(ids)), {}, {}, {}
  for i, id in ipairs(ids) do
    if tokens[i] == token .. string.sub(entries[i], id_length + 1) then
      mine[#mine + 1] = entries[i]
      bodies[#bodies + 1] = redis.call('HGET', messages, id) or ''
      records[#records + 1] = redis.call('HGET', deliveries, id) or ''
    end
  end
  return {'ok', redis.call('LLEN', ready) > 0 and 1 or 0, 0, 0, 0, mine, bodies, records}
end

-- Reading every key that will be written finds a key of a wrong type before anything is.
local leased = redis.call('HLEN', leases)
redis.call('HLEN', scheduler)
if expiry ~= '' then
  redis.call('ZCARD', idle)
end
local waiting = redis.call('ZCARD', waiters)
if limit == 0 then
  redis.call('ZCARD', resting)
end

local stopped = redis.call('HMGET', paused, '', group)
if stopped[1] or stopped[2] then
  redis.call('ZREMRANGEBYSCORE', resting, '-inf', now)
  redis.call('DEL', claim)
  redis.call('ZREM', waiters, address)
  if expiry ~= '' then
    redis.call('ZADD', idle, now + expiry, group)
  end
  local waits = limit > 0 and slots > 0
  if waits then
    redis.call('ZADD', resting, now + patience, address)
  else
    redis.call('ZREM', resting, address)
  end
  return {'ok', 0, 0, waits and 1 or 0, 0, {}, {}, {}}
end

local deadline = string.format('%d', now + lease)
local latest = redis.call('ZREVRANGEBYSCORE', unack, '(' .. string.format('%d', now + lease + 1), deadline,
  'WITHSCORES', 'LIMIT', 0, 1)
local left = redis.call('LLEN', ready)

local entries = {}
if limit > 0 and left > 0 then
  entries = redis.call('LRANGE', ready, 0, limit - 1)
end

-- What it is too late for is passed over, and more is looked at instead. places are those of the entries
-- that are left, counted from the front of ready.
local late, places, looked = {}, nil, #entries
if #entries > 0 and redis.call('HLEN', options) > 0 then
  local some, good = entries, {}
  places, looked = {}, 0
  while #some > 0 do
    local none = #late
    local own = redis.call('HMGET', options, unpack(ids_of(some)))
    for i, entry in ipairs(some) do
      local fate = own[i] and string.match(own[i], 'late:(%a+)')
      if fate then
        local due = tonumber(string.sub(entry, id_length + 2))
        local expires = tonumber(string.match(own[i], 'expires:(%d+)') or nil)
        local lateness = tonumber(string.match(own[i], 'lateness:(%d+)') or nil)
        if not ((expires and now >= expires) or (lateness and now > due + lateness)) then
          fate = nil
        end
      end
      if fate then
        late[#late + 1] = {place = looked + i, id = string.sub(entry, 1, id_length), fate = fate}
      else
        good[#good + 1] = entry
        places[#good] = looked + i
      end
    end
    looked = looked + #some
    if #late == none or #good >= limit or looked >= 1000 then
      break
    end
    some = redis.call('LRANGE', ready, looked, looked + math.min(limit - #good, 1000 - looked) - 1)
  end
  entries = good
end
if #late > 0 then
  redis.call('HLEN', refs)
  redis.call('ZCARD', dead)
end
local ids = ids_of(entries)

local allowed, blocked, records = #ids, 0, {}
if redis.call('HLEN', deliveries) > 0 and #ids > 0 then
  records = redis.call('HMGET', deliveries, unpack(ids))
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

-- Leases that end in the same millisecond are kept in order by their ids, which is what Redis does with
-- equal scores, and by a fraction that grows where an id is not after the one before.
local before, place, score = '', 0, deadline
if latest[1] then
  before, score = latest[1], latest[2]
  place = (tonumber(score) - now - lease) * 1024
end

local taken, bodies, taken_records = {}, {}, {}
local scores, tokens = {}, {}
local lateness, latest_ms, last_suffix, late_by = 0, 0, nil, 0
-- A small hash or zset is a list that Redis searches from end to end, which would cost more than all else
-- here. Where one long text comes first it is a table, and stays one for as long as it exists.
local unfold = leased <= 512 and leased + allowed > 16
if unfold then
  scores, tokens = {0, long}, {long, ''}
end
local orphans, consumed, size, full = {}, 0, 0, false
while consumed < allowed and not full do
  -- One, then as many as will fit if they are like those so far, but not too many, lest they are not.
  local some = 1
  if size > 0 then
    some = math.floor((bytes - size) / (size / #taken))
    some = math.max(1, math.min(some, consumed * 8, 100))
  end
  local found = redis.call('HMGET', messages, unpack(ids, consumed + 1, math.min(consumed + some, allowed)))
  for _, body in ipairs(found) do
    if body and size > 0 and size + #body > bytes then
      full = true
      break
    end
    consumed = consumed + 1
    local id, entry = ids[consumed], entries[consumed]
    if body then
      size = size + #body
      if id < before and place < 1023 then
        place = place + 1
        score = string.format('%.17g', now + lease + place / 1024)
      end
      before = id
      local n = #taken + 1
      taken[n], bodies[n] = entry, body
      if #records > 0 then
        taken_records[n] = records[consumed] or ''
      end
      local suffix = string.sub(entry, id_length + 1)
      if suffix ~= last_suffix then
        last_suffix = suffix
        late_by = math.max(now - tonumber(string.sub(suffix, 2)), 0)
        latest_ms = math.max(latest_ms, late_by)
      end
      lateness = lateness + late_by
      scores[#scores + 1] = score
      scores[#scores + 1] = id
      tokens[#tokens + 1] = id
      tokens[#tokens + 1] = token .. suffix
    else
      orphans[#orphans + 1] = id
    end
  end
end
local reply = {'ok', 0, blocked, 0, #orphans, taken, bodies, taken_records}
local counted = #taken > 0 and redis.call('HMGET', stats, 'delivered', 'late_ms', 'latest_ms')
-- What is too late goes with those in front of which it is.
local popped = consumed
if places then
  popped = consumed < #entries and places[consumed + 1] - 1 or looked
end

-- The first write is a deletion: at maxmemory a claim still works.
if popped > 0 then
  redis.call('LPOP', ready, popped)
  left = left - popped
  if #orphans > 0 then
    redis.call('HDEL', deliveries, unpack(orphans))
  end
end
if consumed == 0 then
  redis.call('DEL', claim)
end
local dropped, buried = {}, {}
for _, l in ipairs(late) do
  if l.place <= popped then
    local list = l.fate == 'dead' and buried or dropped
    list[#list + 1] = l.id
  end
end
if #dropped > 0 then
  redis.call('HDEL', deliveries, unpack(dropped))
  drop(dropped)
  redis.call('HINCRBY', stats, 'dropped', #dropped)
end
if #buried > 0 then
  local known = redis.call('HMGET', deliveries, unpack(buried))
  for i, id in ipairs(buried) do
    local count, delayed_for = string.match(known[i] or '', '^(%d+) %S+ (%S+)')
    redis.call('HSET', deliveries, id, (count or '0') .. ' - ' .. (delayed_for or '-') .. ' not delivered in time')
    redis.call('ZADD', dead, now, id)
  end
  local retention = tonumber(string.match(group_options, '^%S+ (%S+)$') or -1)
  if retention >= 0 then
    schedule(now + retention)
  end
end
if expiry ~= '' then
  redis.call('ZADD', idle, now + expiry, group)
end
if #taken > 0 then
  redis.call('ZADD', unack, unpack(scores))
  redis.call('HSET', leases, unpack(tokens))
  if unfold then
    redis.call('ZREM', unack, long)
    redis.call('HDEL', leases, long)
  end
  redis.call('SET', claim, number .. ' ' .. table.concat(taken, ' '), 'PX', memory)
  redis.call('HSET', stats, 'delivered', string.format('%d', (counted[1] or 0) + #taken),
    'late_ms', string.format('%d', (counted[2] or 0) + lateness),
    'latest_ms', string.format('%d', math.max(counted[3] or 0, latest_ms)),
    'seen', string.format('%d', now))
  schedule(now + lease)
end
if limit == 0 then
  redis.call('ZREM', waiters, address)
  redis.call('ZREM', resting, address)
end
if left > 0 then
  reply[2] = 1
  if waiting > 0 then
    wake(waiters, 1)
  end
elseif #taken < slots then
  redis.call('ZREMRANGEBYSCORE', waiters, '-inf', now)
  redis.call('ZADD', waiters, now + patience, address)
  reply[4] = 1
end
return reply
