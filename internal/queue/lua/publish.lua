-- publish: takes the messages of one numbered call into the topic, all or none.
--
-- KEYS  1 meta       hash: layout, groups (the version of the group set)
--       2 messages   hash: id -> body
--       3 pending    zset: id -> due ms
--       4 options    hash: id -> options, only of messages that have any
--       5 refs       hash: id -> groups that still need the body, only where several do
--       6 scheduler  hash: next, holder, standby, until
--       7 publisher  string: number of this publisher's last call, expiring
--       then for each group of the set:
--         ready      list of "id:due"
--         retry      zset: id -> due ms
--         waiters    zset: address of an idle subscription -> deadline ms
-- ARGV  1 version    of the group set that KEYS were made from
--       2 number     of this call, counted by the publisher
--       3 memory     how long the number is remembered, ms
--       4 single     "1" if PUBLISH counts every receiver (not on a cluster)
--       5 n          messages
--       6 runs       of messages with the same due
--       then for each message: id, body
--       then for each run:
--         count      of messages
--         due        ms from now, or "@" and an instant in ms
--       then for each message that has options: id, options
--
-- A message that is due goes straight to the groups' ready lists, unless something older is due
-- and not yet moved: then it queues behind it in pending, as does everything while there is no group.
-- Returns "ok", "repeated", or "stale" when the group set has changed; the last two write nothing.
-- Twice: the second run finds its number remembered and writes nothing.

local meta, messages, pending, options = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local refs, scheduler, publisher = KEYS[5], KEYS[6], KEYS[7]
local version, number, memory, single = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1'
local n, runs = tonumber(ARGV[5]), tonumber(ARGV[6])
local groups = (#KEYS - 7) / 3
-- Where in ARGV the runs and the options begin.
local first_run = 7 + n * 2
local first_option = first_run + runs * 2

local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local now_up = math.ceil((t[1] * 1000000 + t[2]) / 1000)

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

-- Calls a variadic command with list from first to last, in chunks that Lua can unpack.
local function each(command, key, list, first, last)
  for i = first, last, 1000 do
    redis.call(command, key, unpack(list, i, math.min(i + 999, last)))
  end
end

if redis.call('HGET', meta, 'groups') ~= version then
  return 'stale'
end
local last = redis.call('GET', publisher)
if last and tonumber(last) >= tonumber(number) then
  return 'repeated'
end

-- Reading every key that will be written finds a key of a wrong type before anything is; messages is the
-- first to be written.
if first_option <= #ARGV then
  redis.call('HLEN', options)
end
redis.call('HLEN', scheduler)
if groups > 1 then
  redis.call('HLEN', refs)
end
local head = redis.call('ZRANGE', pending, 0, 0, 'WITHSCORES')
local direct = groups > 0 and not (head[2] and tonumber(head[2]) <= now)
local waiting = {}
for g = 1, groups do
  local ready, retry, waiters = KEYS[5 + g * 3], KEYS[6 + g * 3], KEYS[7 + g * 3]
  redis.call('LLEN', ready)
  waiting[g] = redis.call('ZCARD', waiters)
  head = redis.call('ZRANGE', retry, 0, 0, 'WITHSCORES')
  if head[2] and tonumber(head[2]) <= now then
    direct = false
  end
end

each('HSET', messages, ARGV, 7, first_run - 1)
each('HSET', options, ARGV, first_option, #ARGV)
redis.call('SET', publisher, number, 'PX', memory)

local delayed, ready_now, counts = {}, {}, {}
local next_due
local at = 7 -- in ARGV, of the next id
for r = first_run, first_option - 1, 2 do
  local count, spec = tonumber(ARGV[r]), ARGV[r + 1]
  local due
  if string.sub(spec, 1, 1) == '@' then
    due = math.max(tonumber(string.sub(spec, 2)), now)
  elseif spec == '0' then
    due = now
  else
    due = now_up + tonumber(spec)
  end
  local score = string.format('%.0f', due)
  local stop = at + count * 2
  if direct and due == now then
    local suffix = ':' .. score
    for i = at, stop - 1, 2 do
      ready_now[#ready_now + 1] = ARGV[i] .. suffix
      if groups > 1 then
        counts[#counts + 1] = ARGV[i]
        counts[#counts + 1] = groups
      end
    end
  else
    for i = at, stop - 1, 2 do
      delayed[#delayed + 1] = score
      delayed[#delayed + 1] = ARGV[i]
    end
    if not next_due or due < next_due then
      next_due = due
    end
  end
  at = stop
end

each('ZADD', pending, delayed, 1, #delayed)
each('HSET', refs, counts, 1, #counts)
if #ready_now > 0 then
  for g = 1, groups do
    each('RPUSH', KEYS[5 + g * 3], ready_now, 1, #ready_now)
    if waiting[g] > 0 then
      wake(KEYS[7 + g * 3], math.min(#ready_now, 64))
    end
  end
end
if next_due and groups > 0 then
  schedule(next_due)
end
return 'ok'
