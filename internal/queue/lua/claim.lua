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
--   workers     hash: subscription -> "since seen until heard gone who address"
--   limits      hash: group -> state of its limit, "full event woken since last cost"
--   limited     zset: address of a subscription that waits for the limit -> ms until which it is
--               valid, so the first to wait is the first to be woken
-- CONSTANTS
--   poll = 90000  ms in which every subscription claims: SignValid
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
--   turn          flag: the subscription was woken, or polls
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
-- A group with a limit leases no more than that allows now, and no more than the subscription could
-- hand out at once. A subscription that gets less for this reason waits in limited. It is woken in
-- turn: by the scheduler when there is a token, and by a claim that leaves some. Those that were
-- woken together share the tokens. A claim that nobody woke leaves one for each that waits.
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
--   limits    number: 0 if the group has no limit, 1 if it has a rate, 2 if a number at once
--   history   text: "<ms>:<number>", the bounds of the history; "" if the group keeps none
-- Twice: a repeat of the last claim that got messages returns those that it still leases. It takes
-- the expiries of the others back. A repeat of a claim that got none is a new claim, and counts
-- once more what the subscription counted. A repeat of an older claim leases nothing while the last
-- one that got messages is remembered.

if expiry then
  -- No waiter that knows the expiry is valid when the group ends: remove relies on that.
  patience = math.min(patience, expiry)
end
-- The address stays in limited for as long as a subscription may take until its next claim.
local stays = math.min(poll, expiry or poll)
local long = string.rep('-', 65)

--@use now post grace schedule wake id_length latest take_back heard attend active group_options
--@use bucket

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

local at = string.format('%d', now)

-- Returns the reply. All replies are made here.
local function answer(left, blocked, waits, orphans, entries, bodies, records, expiries, since)
  local epoch = single and mine and string.format('%d', a.epoch) or '0'
  local kind = not settings.limit and 0 or settings.limit.at_once and 2 or 1
  return {'ok', left, blocked, waits, orphans, entries, bodies, records, at, expiries, since, epoch, kind,
    settings.history or ''}
end

-- Returns the token of leases that this claim made at a time; ":due" follows, as in the entry.
local function token_of(since)
  return subscription .. ':' .. number .. ':' .. since
end

-- Returns how many leases of the message expired in a row, from its entry in suspects.
local function expiries_of(noted)
  return tonumber(string.match(noted or '', '^%d+') or 0)
end

--@phase repeat

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
local tokens_of = settings.limit and buckets()
local bucket = tokens_of and tokens_of.read(group, settings.limit)
if bucket then
  redis.call('ZCARD', limited)
end
local counts = {} -- fields of stats that get other values
for i = 1, figure_count do
  --@each figure i field
  counts[i] = field
end
local counted = redis.call('HMGET', stats, 'latest_ms', unpack(counts)) -- their values so far

-- Each claim notes its time, and whether its subscription knows of no expiry.
local token = token_of(at)
local asks = not expiry and {'asked', at, 'lasting', '1'} or {'asked', at}

-- Adds what the subscription counted to stats, and notes the time of the claim. If it got messages,
-- or counted any, that time is "seen" too. If it counted acks, that time is "settled".
local function count(got)
  if #counts > 0 then
    local fields = {'seen', at, unpack(asks)}
    local n = #fields
    for i = 1, figure_count do
      --@each figure i field more
      fields[n + 1], fields[n + 2] = field, string.format('%d', (counted[i + 1] or 0) + more)
      n = n + 2
      if field == 'acked' then
        fields[n + 1], fields[n + 2] = 'settled', at
        n = n + 2
      end
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

--@phase ownership

local deadline = string.format('%d', now + lease)
local latest = redis.call('ZREVRANGEBYSCORE', unack, '(' .. string.format('%d', now + lease + 1), deadline,
  'WITHSCORES', 'LIMIT', 0, 1)
local left = redis.call('LLEN', ready)
local leaves = limit == 0
--@phase limit

-- Returns how many messages the subscription may hold with a message with so many expiries.
local function company(expiries)
  return expiries > 1 and math.max(1, math.floor(most / 2 ^ (expiries - 1))) or math.huge
end
--@phase suspects

--@phase take

--@phase lease
