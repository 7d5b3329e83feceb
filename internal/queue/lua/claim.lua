-- claim: leases ready messages of a group to a subscription, oldest first.
--
-- KEYS  1 groups      hash: group -> options
--       2 messages    hash: id -> body
--       3 ready       list of "id:due"
--       4 unack       zset: id -> lease deadline ms, its fraction keeps the order
--       5 leases      hash: id -> "subscription:claim:due", the lease's token
--       6 deliveries  hash: id -> "count flag delayed_for", only after a first delivery ended
--       7 waiters     zset: address of an idle subscription -> deadline ms
--       8 claim       string: this subscription's last claim, "number id:due ...", expiring
--       9 scheduler   hash: next, holder, standby, until
--      10 idle        zset: group that is removed when unused -> ms at which it is
--      11 paused      hash: group, or "" for the topic -> ms since when
--      12 resting     zset: address of a subscription whose claim was stopped, by a pause or a suspect -> deadline ms
--      13 stats       hash: what was counted so far
--      14 dead        zset: id -> ms at which it died
-- ARGV  1 group
--       2 subscription
--       3 number      of this claim, counted by the subscription
--       4 limit       messages at most (at most 1000); 0: the subscription can take none, is not to
--                     be woken, and passes on the wake-up that it may have had
--       5 busy        "1" if the subscription holds other messages
--       6 lease       ms
--       7 slots       messages that the subscription could hand out at once; 0 also if it need not be woken
--       8 address     to be woken at if that is more than are ready, or if a suspect is next and it is busy
--       9 patience    how long the address stays valid, ms
--      10 bytes       of bodies at most, the first message excepted
--      11 memory      how long the claim is remembered, ms
--      12 single      "1" if PUBLISH counts every receiver (not on a cluster)
--      13 expiry      ms without use after which the group is removed, or "": not known to this subscription.
--                     A group without an end gets none by a claim, only by register, and none gets an earlier one:
--                     of those that differ in it, the latest counts. That somebody does not
--                     know of one is noted here ("lasting" in stats): who finds the group there does not register it.
--      14 delivered   messages that the subscription handed over since its last claim
--      15 late_ms     by how much those were late, all together
--      16 latest_ms   and at most
--      17 dropped     messages that it dropped since, as too late
--
-- While the group or its topic is paused, nothing is leased, and a subscription with slots is woken when that ends.
-- A message whose lease has expired before (flag "s" or "rs", suspect) is claimed alone, and only by a
-- subscription that holds nothing else. Others with slots are woken, or wait, when one has taken it.
-- Returns {"unregistered"} if the group does not exist, else {"ok", left, blocked, waits, orphans,
-- entries, bodies, records, now}: left is 1 if more is ready; blocked is 1 if a suspect waits for the
-- subscription to be free; waits is 1 if the subscription will be woken; orphans counts ids that had no
-- body and were dropped. entries is "id:due id:due ..."; bodies and records are lists with a part for each message,
-- but records is empty if no message of the group has one; now is the server's time, in ms as text.
-- Twice: the same number returns those messages of the first run that are still leased by it. If it brought
-- none, what the subscription handed over and dropped is counted once more. A number before that of the last claim that
-- brought something is a repeat that comes too late for anybody: it returns nothing and leases nothing.

local groups, messages, ready, unack, leases = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local deliveries, waiters, claim, scheduler, idle = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local paused, resting, stats, dead = KEYS[11], KEYS[12], KEYS[13], KEYS[14]
local group, subscription, number, limit = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local busy, lease, slots, address = ARGV[5] == '1', tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
local patience, bytes, memory, single = tonumber(ARGV[9]), tonumber(ARGV[10]), ARGV[11], ARGV[12] == '1'
local expiry = ARGV[13]
if expiry ~= '' then
  -- Who is found waiting when the group ends is then one that does not know of its end.
  patience = math.min(patience, tonumber(expiry))
end
local delivered, dropped = tonumber(ARGV[14]), tonumber(ARGV[17])
local long = string.rep('-', 65)

--@use now schedule wake id_length

if redis.call('HEXISTS', groups, group) == 0 then
  return {'unregistered'}
end

local function ids_of(entries)
  local ids = {}
  for i = 1, #entries do
    ids[i] = string.sub(entries[i], 1, id_length)
  end
  return ids
end
local token = subscription .. ':' .. number -- and ":due", as the entry ends

local last = redis.call('GET', claim)
if last and tonumber(string.match(last, '^%d+')) >= tonumber(number) then
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
  return {
    'ok', redis.call('LLEN', ready) > 0 and 1 or 0, 0, 0, 0, table.concat(mine, ' '), bodies, records,
    string.format('%d', now),
  }
end

-- Reading every key that will be written finds a key of a wrong type before anything is.
local leased = redis.call('HLEN', leases)
redis.call('HLEN', scheduler)
redis.call('HLEN', stats)
if expiry ~= '' then
  redis.call('ZCARD', idle)
end
local waiting = redis.call('ZCARD', waiters)
if limit == 0 then
  redis.call('ZCARD', resting)
end
local counted = delivered + dropped > 0
  and redis.call('HMGET', stats, 'delivered', 'late_ms', 'latest_ms', 'dropped')

-- What each claim notes: somebody is there, and if he does not know of an end, that too.
local at = string.format('%d', now)
local asks = expiry == '' and {'asked', at, 'lasting', '1'} or {'asked', at}

-- Notes that somebody asked, and whether it got or tells of messages; and adds what it handed over and dropped.
local function count(got)
  if counted then
    redis.call('HSET', stats, 'delivered', string.format('%d', (counted[1] or 0) + delivered),
      'late_ms', string.format('%d', (counted[2] or 0) + ARGV[15]),
      'latest_ms', string.format('%d', math.max(counted[3] or 0, ARGV[16])),
      'dropped', string.format('%d', (counted[4] or 0) + dropped), 'seen', at, unpack(asks))
  elseif got then
    redis.call('HSET', stats, 'seen', at, unpack(asks))
  else
    redis.call('HSET', stats, unpack(asks))
  end
end

local stopped = redis.call('HMGET', paused, '', group)
if stopped[1] or stopped[2] then
  redis.call('ZREMRANGEBYSCORE', resting, '-inf', now)
  redis.call('DEL', claim)
  redis.call('ZREM', waiters, address)
  count(false)
  if expiry ~= '' then
    redis.call('ZADD', idle, 'XX', 'GT', now + expiry, group)
  end
  local waits = limit > 0 and slots > 0
  if waits then
    redis.call('ZADD', resting, now + patience, address)
  else
    redis.call('ZREM', resting, address)
  end
  return {'ok', 0, 0, waits and 1 or 0, 0, '', {}, {}, string.format('%d', now)}
end

local deadline = string.format('%d', now + lease)
local latest = redis.call('ZREVRANGEBYSCORE', unack, '(' .. string.format('%d', now + lease + 1), deadline,
  'WITHSCORES', 'LIMIT', 0, 1)
local left = redis.call('LLEN', ready)

local function is_suspect(record)
  return record and string.match(record, '^%d+ r?s ')
end
local entries = {}
-- Most often the only records are those that each dead message has.
local recorded = redis.call('HLEN', deliveries)
recorded = recorded > 0 and limit > 0 and left > 0 and recorded > redis.call('ZCARD', dead)
local suspect = recorded and is_suspect(
  redis.call('HGET', deliveries, ids_of(redis.call('LRANGE', ready, 0, 0))[1]))
if limit > 0 and left > 0 then
  entries = redis.call('LRANGE', ready, 0, suspect and 0 or limit - 1)
end
local ids = ids_of(entries)

local allowed, blocked, records = #ids, 0, {}
if recorded then
  records = redis.call('HMGET', deliveries, unpack(ids))
  for i = 2, #ids do
    if is_suspect(records[i]) then
      allowed = i - 1
      break
    end
  end
end
if suspect then
  redis.call('ZCARD', resting)
  if busy then
    allowed, blocked = 0, 1
  end
end

-- Leases that end in the same millisecond are kept in order by their ids, which is what Redis does with
-- equal scores, and by a fraction that grows where an id is not after the one before. By < that is as the server's
-- locale says, which in a few differs for some letters: then such messages may come back in another order. To
-- compare bytes would cost every claim a fifth.
local before, place, score = '', 0, deadline
if latest[1] then
  before, score = latest[1], latest[2]
  place = (tonumber(score) - now - lease) * 1024
end

-- What is counted here is not asked for by #, which searches for the end of a list each time.
local taken, bodies, taken_records, n = {}, {}, {}, 0
local scores, tokens, filled = {}, {}, 0 -- places in both
local due, due_token -- of the message before: many have the same
-- A small hash or zset is a list that Redis searches from end to end, which would cost more than all else
-- here. Where one long text comes first it is a table, and stays one for as long as it exists.
local unfold = leased <= 512 and leased + allowed > 16
if unfold then
  scores, tokens, filled = {0, long}, {long, ''}, 2
end
local orphans, consumed, size, full = {}, 0, 0, false
while consumed < allowed and not full do
  -- One, then as many as will fit if they are like those so far, but few, lest they are not: what does not fit is read in vain.
  local some = 1
  if n > 0 then
    some = math.floor((bytes - size) / (math.max(size, 1) / n))
    some = math.max(1, math.min(some, 8))
  end
  local found = redis.call('HMGET', messages, unpack(ids, consumed + 1, math.min(consumed + some, allowed)))
  for i = 1, #found do
    local body = found[i]
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
      n = n + 1
      taken[n], bodies[n] = entry, body
      if #records > 0 then
        taken_records[n] = records[consumed] or ''
      end
      local its_due = string.sub(entry, id_length + 1)
      if its_due ~= due then
        due, due_token = its_due, token .. its_due
      end
      scores[filled + 1], scores[filled + 2] = score, id
      tokens[filled + 1], tokens[filled + 2] = id, due_token
      filled = filled + 2
    elseif id ~= nobody then
      orphans[#orphans + 1] = id
    end
  end
end
taken = table.concat(taken, ' ')
local reply = {'ok', 0, blocked, 0, #orphans, taken, bodies, taken_records, string.format('%d', now)}

-- The first write is a deletion: at maxmemory a claim still works.
if consumed > 0 then
  redis.call('HDEL', scheduler, '')
  left = left - consumed
  if #orphans > 0 then
    redis.call('HDEL', deliveries, unpack(orphans))
  end
else
  redis.call('DEL', claim)
end
count(n > 0)
if expiry ~= '' then
  redis.call('ZADD', idle, 'XX', 'GT', now + expiry, group)
end
if n > 0 then
  redis.call('ZADD', unack, unpack(scores))
  redis.call('HSET', leases, unpack(tokens))
  if unfold then
    redis.call('ZREM', unack, long)
    redis.call('HDEL', leases, long)
  end
  redis.call('SET', claim, number .. ' ' .. taken, 'PX', memory)
  schedule(now + lease)
end
if limit == 0 then
  redis.call('ZREM', waiters, address)
  redis.call('ZREM', resting, address)
end
-- Who waited for another to take the suspect waits as all do, or is woken; unless another suspect is next, for which they
-- would have to wait again, each woken by the one before.
if suspect and blocked == 0 then
  redis.call('ZREM', resting, address)
  redis.call('ZREMRANGEBYSCORE', resting, '-inf', now)
  local behind = left > 0 and redis.call('HGET', deliveries, ids_of(redis.call('LRANGE', ready, consumed, consumed))[1])
  if not is_suspect(behind) then
    local others = redis.call('ZRANGE', resting, 0, 999, 'WITHSCORES')
    for i = 1, #others, 2 do
      redis.call('ZADD', waiters, others[i + 1], others[i])
      redis.call('ZREM', resting, others[i])
      waiting = waiting + 1
    end
  end
end
if left > 0 then
  reply[2] = 1
  if blocked == 1 and slots > 0 then
    redis.call('ZREM', waiters, address)
    redis.call('ZREMRANGEBYSCORE', resting, '-inf', now)
    redis.call('ZADD', resting, now + patience, address)
    reply[4] = 1
  end
  if waiting > 0 then
    wake(waiters, 1)
  end
elseif n < slots then
  redis.call('ZREMRANGEBYSCORE', waiters, '-inf', now)
  redis.call('ZADD', waiters, now + patience, address)
  reply[4] = 1
end
-- What goes by its place goes last: see docs/design.md.
if consumed > 0 then
  redis.call('LTRIM', ready, consumed, -1)
end
return reply
