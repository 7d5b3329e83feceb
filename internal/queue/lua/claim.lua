-- claim: leases ready messages of a group to a subscription, oldest first.
--
-- KEYS
--   groups      hash: group -> options
--   messages    hash: id -> body
--   ready       list: "id:due"
--   unack       zset: id -> lease deadline ms, whose fraction keeps the order
--   leases      hash: id -> "subscription:claim:since:due", the lease's token
--   deliveries  hash: id -> "count flag delayed_for", only after a first delivery ended
--   waiters     zset: address of an idle subscription -> ms until which it is valid
--   claim       string: this subscription's last claim, "number:since id:due ...", expiring
--   scheduler   hash: next, holder, standby, until
--   idle        zset: group with an expiry -> ms at which it is removed
--   paused      hash: group, or "" for the topic -> "<ms since when> <by> <why>"
--   resting     zset: address of a subscription that may not claim now -> ms until which it is
--               valid
--   stats       hash: counters and times of the group
--   dead        zset: id -> ms at which it died
--   suspects    hash: id -> "expiries alone lost", of messages whose last lease expired
--   active      hash: group -> "owner epoch ends lease", of groups with SingleActive
--   standby     zset: address of a subscription that may become the owner -> ms until which it is
--               valid
--   workers     hash: subscription -> "since seen until who"
-- ARGV
--   group         text:
--   subscription  text:
--   number        text: of this claim; the subscription counts its claims
--   limit         number: messages at most (at most 1000). With 0 the subscription takes none, and
--                 passes on the wake-up that it may have had; slots are 0 then.
--   held          number: messages that the subscription holds, or that its other lane may bring
--   lease         number: ms that the leases last
--   slots         number: messages that the subscription could hand out at once; 0 also if it must
--                 not be woken
--   address       text: of the subscription. If it has more slots than messages are ready, it is a
--                 waiter afterwards. If it has slots and may not claim now, it rests.
--   patience      number: ms for which the address is valid
--   bytes         number: of bodies at most, but for the first message
--   memory        text: ms for which the claim is remembered
--   expiry        number: ms without use after which the group is removed; "" if the subscription
--                 knows of none
--   most          number: messages that the consumer has at once at most
--   worker        text: "<ms for which the note is valid> <who>", to note that the subscription
--                 lives; "" most often
--   latest_ms     text: by which a message was late at most that the subscription handed over
--                 since its last claim; "" for none
--   single        flag: the subscription is of a group with SingleActive
--   known         number: highest epoch that the subscription had; 0 for none
-- ARGV of each figure
--   field  text: of stats, which the subscription counted since its last claim
--   more   number: that it counted
--
-- While the group or its topic is paused, the call leases nothing. A subscription with slots rests
-- until the pause ends.
-- A suspect is a message whose last lease expired. From the second expiry in a row on, it goes only
-- to a subscription that then holds few messages: at most half of most, after the third a quarter,
-- and so on. The claim ends before a message that would be one too many. A subscription that gets
-- nothing for this reason rests if it has slots. A suspect that has to be the only one is noted as
-- "alone", so that its next expiry counts as a delivery.
-- The call puts off the removal of a group with an expiry. It does not bring it forward, and gives
-- no expiry to a group without one: only register does. A claim without an expiry is noted as
-- "lasting" in stats, because a subscription that finds its group there does not register it.
-- In a group with SingleActive only the owner gets messages. A subscription becomes the owner if
-- the place is free and nothing is leased. Both lanes are the same owner. Others stand by if they
-- have slots. So does the owner once one of its leases is over, because expire takes all of them
-- back then. The owner has to claim again within its lease, unless it waits or rests. A standby's
-- call gives an idle owner that deadline too, if its address is no longer valid. If the place is
-- free and a standby takes no messages, it passes the place on to the next standby. If the
-- subscription knows a higher epoch than the record has, the owner gets one above that.
-- Returns {"unregistered"} if there is no group with this setting of SingleActive, else
-- REPLY
--   ok        text: "ok"
--   left      number: 1 if more messages are ready
--   blocked   number: if the subscription holds too many for the next message, which is a suspect:
--             how many it may hold with it; else 0
--   waits     number: 1 if the subscription will be woken
--   orphans   number: of ids that had no body and were dropped
--   entries   text: "id:due id:due ..."
--   bodies    list: the body of each message
--   records   list: the record of each message, "" for none; or empty if there is no record
--   now       text: the server's time in ms
--   expiries  list: the expired leases in a row of each message, or empty if there is no suspect
--   since     text: ms at which the messages were leased: now, unless this is a repeat
--   epoch     text: with SingleActive, of the owner; "0" if that is another subscription
-- Twice: a repeat of the last claim that got messages returns those that it still leases. It takes
-- the expiries of the others back. A repeat of a claim that got none is a new claim, and counts
-- once more what the subscription counted. A repeat of an older claim leases nothing while the last
-- one that got messages is remembered.

if expiry then
  -- No waiter that knows the expiry is valid when the group ends: remove relies on that.
  patience = math.min(patience, expiry)
end
local long = string.rep('-', 65)

--@use now post grace schedule wake id_length latest take_back attend active group_options

local settings = read_options(redis.call('HGET', groups, group))
if not settings or settings.single ~= single then
  return {'unregistered'}
end

local function ids_of(entries)
  local ids = {}
  for i = 1, #entries do
    ids[i] = string.sub(entries[i], 1, id_length)
  end
  return ids
end
local leased = redis.call('HLEN', leases)

-- The record of active, and whether this subscription is the owner.
local me = string.match(subscription, '^[^+]*')
local a = single and (read_active(group) or {owner = '-', epoch = 0, ends = 0, lease = lease})
if single and a.ends > 0 and a.ends <= now and leased == 0 then
  a.owner = '-' -- its time is over, so the next one has another epoch, even if it is the same
end
local mine = single and a.owner == me
local lost = single and known > a.epoch -- by a failover: a later owner is not in the record
if lost then
  a.epoch = known + 1
end

-- Returns a reply with the owner's epoch.
local function answer(reply)
  reply[12] = single and mine and string.format('%d', a.epoch) or '0'
  return reply
end

-- Returns the token of leases that this claim made at a time; ":due" follows, as in the entry.
local function token_of(since)
  return subscription .. ':' .. number .. ':' .. since
end

-- Returns how many leases of the message expired in a row, from its entry in suspects.
local function expiries_of(noted)
  return tonumber(string.match(noted or '', '^%d+') or 0)
end

-- Repeat: returns the reply with those messages of the last claim that are still leased, or nil if
-- this is no repeat.
local function repeated()
  local last = redis.call('GET', claim)
  local last_number, since = string.match(last or '', '^(%d+):(%d+)')
  if last and tonumber(last_number) >= tonumber(number) then
    local token = token_of(since)
    local entries = {}
    for entry in string.gmatch(last, ' (%S+)') do
      entries[#entries + 1] = entry
    end
    local ids = ids_of(entries)
    local tokens, own, own_entries = redis.call('HMGET', leases, unpack(ids)), {}, {}
    local bodies, records, expiries = {}, {}, {}
    for i in ipairs(ids) do
      own[i] = token .. string.sub(entries[i], id_length + 1)
    end
    take_back(ids, own, tokens)
    for i, id in ipairs(ids) do
      if tokens[i] == own[i] then
        own_entries[#own_entries + 1] = entries[i]
        bodies[#bodies + 1] = redis.call('HGET', messages, id) or ''
        records[#records + 1] = redis.call('HGET', deliveries, id) or ''
        expiries[#expiries + 1] = expiries_of(redis.call('HGET', suspects, id))
      end
    end
    return {
      'ok', redis.call('LLEN', ready) > 0 and 1 or 0, 0, 0, 0, table.concat(own_entries, ' '), bodies, records,
      string.format('%d', now), expiries, since,
    }
  end
end

local repetition = repeated()
if repetition then
  return answer(repetition)
end

-- Read every key that is written later: one of a wrong type is found before the first write.
if worker ~= '' then
  redis.call('HLEN', workers)
end
if expiry then
  redis.call('ZCARD', idle)
end
local waiting = redis.call('ZCARD', waiters)
if limit == 0 or single then
  redis.call('ZCARD', resting)
end
if single then
  redis.call('ZCARD', standby)
end
local counts = {} -- fields of stats that get other values
for i = 1, figure_count do
  --@each figure i field
  counts[i] = field
end
local counted = redis.call('HMGET', stats, 'latest_ms', unpack(counts)) -- their values so far

-- Each claim notes its time, and whether its subscription knows of no expiry.
local at = string.format('%d', now)
local token = token_of(at)
local asks = not expiry and {'asked', at, 'lasting', '1'} or {'asked', at}

-- Adds what the subscription counted to stats, and notes the time of the claim. If it got messages,
-- or counted any, that time is "seen" too.
local function count(got)
  if #counts > 0 then
    local fields = {'seen', at, unpack(asks)}
    local n = #fields
    for i = 1, figure_count do
      --@each figure i field more
      fields[n + 1], fields[n + 2] = field, string.format('%d', (counted[i + 1] or 0) + more)
      n = n + 2
    end
    if latest_ms ~= '' then
      fields[n + 1], fields[n + 2] = 'latest_ms', latest_with(counted[1], latest_ms)
    end
    redis.call('HSET', stats, unpack(fields))
  elseif got then
    redis.call('HSET', stats, 'seen', at, unpack(asks))
  else
    redis.call('HSET', stats, unpack(asks))
  end
end

-- Ownership: returns where the subscription rests if it may not claim now, else false; whether it
-- takes the place of the owner; whether an idle owner is silent; and whether a lease of the owner
-- is over.
local function ownership()
  local stopped = redis.call('HMGET', paused, '', group)
  local rests = (stopped[1] or stopped[2]) and resting -- where the subscription rests, if it may not claim
  local takes_over = single and not rests and a.owner == '-' and leased == 0 and limit > 0
  if takes_over then
    -- The epoch grows even if the record was lost, because it is not below the time.
    a.owner, a.epoch, mine = me, math.max(a.epoch + 1, now), true
  elseif single and not rests and not mine then
    rests = standby
  end
  local over = mine and not rests and leased > 0
    and redis.call('ZCOUNT', unack, '-inf', '(' .. string.format('%d', now + 1)) > 0
  if over then -- the place is free as soon as nothing is leased
    rests, mine, a.ends = standby, false, now
  end
  -- An idle owner renews its address. Without a valid one it has to claim, as if it had been woken.
  local silent = single and rests == standby and a.owner ~= '-' and a.ends == 0 and leased == 0
    and redis.call('ZCOUNT', waiters, '(' .. at, '+inf') == 0
  if silent then
    a.ends = now + a.lease
  end
  return rests, takes_over, silent, over
end

-- Has the subscription rest, and returns the reply.
local function rest(rests, silent, over)
  redis.call('ZREMRANGEBYSCORE', rests, '-inf', now)
  redis.call('DEL', claim)
  redis.call('ZREM', waiters, address)
  count(false)
  if worker ~= '' then
    attend(workers, subscription, worker)
  end
  if expiry then
    redis.call('ZADD', idle, 'XX', 'GT', now + expiry, group)
  end
  local waits = limit > 0 and slots > 0
  if waits then
    redis.call('ZADD', rests, now + patience, address)
  else
    redis.call('ZREM', rests, address)
    if single then
      redis.call('ZREM', resting, address)
      redis.call('ZREM', standby, address)
    end
  end
  local passes = rests == standby and limit == 0 and a.owner == '-' and a.ends > 0 and wake(standby, 1) > 0
  if passes then
    a.ends = now + a.lease
  end
  if mine then -- while the group is paused, no deadline runs
    a.ends, a.lease = 0, lease
  end
  if mine or lost or silent or passes or over then
    write_active(group, a)
  end
  if silent or passes or over then
    schedule(a.ends)
  end
  return {'ok', 0, 0, waits and 1 or 0, 0, '', {}, {}, at, {}, at}
end

local rests, takes_over, silent, over = ownership()
if rests then
  return answer(rest(rests, silent, over))
end

local deadline = string.format('%d', now + lease)
local latest = redis.call('ZREVRANGEBYSCORE', unack, '(' .. string.format('%d', now + lease + 1), deadline,
  'WITHSCORES', 'LIMIT', 0, 1)
local left = redis.call('LLEN', ready)

-- Returns how many messages the subscription may hold with a message with so many expiries.
local function company(expiries)
  return expiries > 1 and math.max(1, math.floor(most / 2 ^ (expiries - 1))) or math.huge
end
-- Suspects: returns the entries that the subscription may take, and what is noted of them. A
-- suspect ends them if the subscription would hold too many with it.
local function suspects_among()
  -- Every dead message has a record, and every suspect. Most often there are no others.
  local recorded = redis.call('HLEN', deliveries)
  recorded = recorded > 0 and limit > 0 and left > 0 and recorded > redis.call('ZCARD', dead)
  local suspected = recorded and redis.call('HLEN', suspects) > 0
  local rested = suspected and not single and redis.call('ZCARD', resting) > 0
  local room, blocked = math.huge, 0 -- messages that may be held, with those of this claim
  if suspected then
    local first = ids_of(redis.call('LRANGE', ready, 0, 0))[1]
    room = company(expiries_of(redis.call('HGET', suspects, first)))
    if held + 1 > room then
      blocked = room
    end
  end
  local entries, records, noted = {}, {}, {}
  if limit > 0 and left > 0 and blocked == 0 then
    entries = redis.call('LRANGE', ready, 0, math.min(limit, room - held) - 1)
  end
  local ids = ids_of(entries)
  local allowed = #ids
  if recorded and allowed > 0 then
    records = redis.call('HMGET', deliveries, unpack(ids))
  end
  if suspected and allowed > 0 then
    noted = redis.call('HMGET', suspects, unpack(ids))
    for i = 2, #noted do
      room = math.min(room, company(expiries_of(noted[i])))
      if held + i > room then
        allowed = i - 1
        break
      end
    end
  end
  return {
    entries = entries, ids = ids, records = records, noted = noted, allowed = allowed,
    suspected = suspected, rested = rested, blocked = blocked,
  }
end

-- Take: reads the bodies of the entries, until their bytes are enough, and prepares the leases.
local function take(found)
  local entries, ids, records, noted = found.entries, found.ids, found.records, found.noted
  local allowed, suspected = found.allowed, found.suspected
  -- Redis orders leases with one deadline by their ids. Where an id is not after the one before it,
  -- the deadline gets a larger fraction, which keeps the order. The operator < compares by the
  -- server's locale. A few locales order some letters in another way, and there such messages may
  -- come back in another order. To compare bytes would make every claim slower by a fifth.
  local before, place, score = '', 0, deadline
  if latest[1] then
    before, score = latest[1], latest[2]
    place = (tonumber(score) - now - lease) * 1024
  end

  -- These lists have counters, because # searches for the end of a list each time.
  local taken, bodies, taken_records, n = {}, {}, {}, 0
  local taken_expiries, changed, worst = {}, {}, 0 -- changed: entries of suspects; worst: most expiries
  local scores, tokens, filled = {}, {}, 0 -- entries of scores, and of tokens
  local due, due_token -- of the message before, because many have the same
  -- Redis searches a small hash or zset from end to end, which would cost more than all else here.
  -- One long text makes it a table, for as long as it exists. So a long text goes in and out again.
  local unfold = leased <= 512 and leased + allowed > 16
  if unfold then
    scores, tokens, filled = {0, long}, {long, ''}, 2
  end
  local orphans, consumed, size, full = {}, 0, 0, false
  while consumed < allowed and not full do
    -- Read one body, then as many as fit if they are as large as those so far. A body that does not
    -- fit is read in vain, so eight at most.
    local some = 1
    if n > 0 then
      some = math.floor((bytes - size) / (math.max(size, 1) / n))
      some = math.max(1, math.min(some, 8))
    end
    local some_bodies = redis.call('HMGET', messages, unpack(ids, consumed + 1, math.min(consumed + some, allowed)))
    for i = 1, #some_bodies do
      local body = some_bodies[i]
      if body and size > 0 and size + #body > bytes then
        full = true
        break
      end
      consumed = consumed + 1
      local id, entry = ids[consumed], entries[consumed]
      local expiries = 0
      if suspected then
        expiries = expiries_of(noted[consumed])
        worst = math.max(worst, expiries)
      end
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
        if suspected then
          taken_expiries[n] = expiries
          local alone = company(expiries) == 1 and ' alone ' or ' - '
          local text = expiries > 0 and string.gsub(noted[consumed], ' %S+ ', alone, 1)
          if text and text ~= noted[consumed] then
            changed[#changed + 1] = id
            changed[#changed + 1] = text
          end
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
  return {
    entries = table.concat(taken, ' '), bodies = bodies, records = taken_records, expiries = taken_expiries, n = n,
    consumed = consumed, orphans = orphans, scores = scores, tokens = tokens, changed = changed, worst = worst,
    unfold = unfold,
  }
end

-- Lease: writes the leases, and whom to wake, and returns the reply.
local function lease_them(found, got)
  local orphans, consumed, n, blocked = got.orphans, got.consumed, got.n, found.blocked
  local reply = {'ok', 0, blocked, 0, #orphans, got.entries, got.bodies, got.records, at, got.expiries, at}

  -- The first write is a deletion: after one, a script may write at maxmemory too.
  if consumed > 0 then
    redis.call('HDEL', scheduler, '')
    left = left - consumed
    if #orphans > 0 then
      redis.call('HDEL', deliveries, unpack(orphans))
      if found.suspected then
        redis.call('HDEL', suspects, unpack(orphans))
      end
    end
  else
    redis.call('DEL', claim)
  end
  count(n > 0)
  if worker ~= '' then
    attend(workers, subscription, worker)
  end
  if expiry then
    redis.call('ZADD', idle, 'XX', 'GT', now + expiry, group)
  end
  if takes_over then
    redis.call('DEL', waiters) -- an earlier owner may be there
    redis.call('ZREM', standby, address)
  end
  if n > 0 then
    redis.call('ZADD', unack, unpack(got.scores))
    redis.call('HSET', leases, unpack(got.tokens))
    if got.unfold then
      redis.call('ZREM', unack, long)
      redis.call('HDEL', leases, long)
    end
    if #got.changed > 0 then
      redis.call('HSET', suspects, unpack(got.changed))
    end
    redis.call('SET', claim, number .. ':' .. at .. ' ' .. got.entries, 'PX', memory)
    schedule(now + lease)
  end
  if limit == 0 then
    redis.call('ZREM', waiters, address)
    redis.call('ZREM', resting, address)
  end
  -- Subscriptions that rested for a suspect in front become waiters again. They rest on if the next
  -- message would have them rest again. An expiry of the suspect may have been taken back since.
  if found.rested and consumed > 0 then
    redis.call('ZREM', resting, address)
    redis.call('ZREMRANGEBYSCORE', resting, '-inf', now)
    local behind = left > 0 and redis.call('HGET', suspects, ids_of(redis.call('LRANGE', ready, consumed, consumed))[1])
    if expiries_of(behind) < math.max(got.worst, 2) then
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
    if blocked > 0 and slots > 0 then
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
  if single then
    a.ends, a.lease = redis.call('ZCARD', waiters) > 0 and 0 or now + lease, lease
    write_active(group, a)
    if a.ends > 0 then
      schedule(a.ends)
    end
  end
  -- Deletions by position are the last writes: see docs/design.md.
  if consumed > 0 then
    redis.call('LTRIM', ready, consumed, -1)
  end
  return reply
end

local found = suspects_among()
return answer(lease_them(found, take(found)))
