-- expire: takes back the messages whose lease has run out.
--
-- KEYS
--   meta     hash: layout, groups (the version of the group set)
--   groups   hash: group -> options
--   options  hash: id -> options, only of messages that have any
--   active   hash: group -> "owner epoch ends lease", of groups with SingleActive
--   limits   hash: group -> state of its limit, "full event woken since last cost"
-- KEYS of each group
--   ready       list: "id:due"
--   unack       zset: id -> lease deadline ms, whose fraction keeps the order
--   leases      hash: id -> "subscription:claim:since:due", the lease's token
--   deliveries  hash: id -> "count flag delayed_for reason"
--   dead        zset: id -> ms at which it died
--   waiters     zset: address of an idle subscription -> ms until which it is valid
--   stats       hash: counters and times of the group
--   suspects    hash: id -> "expiries alone lost", of messages whose last lease expired
-- ARGV
--   version  text: of the group set that KEYS were made from
--   budget   number: messages of one group to take back at most (at most 1000); the call takes no
--            further group once it has taken back so many
--   single   flag: the topic may have groups with SingleActive
--   bounded  flag: the topic may have groups with a limit
-- ARGV of each group
--   name  text:
-- ARGV of each message
--   id     text: of each message whose lease an operator ends (at most 1000), in the order in which
--          they come back; only with one group
--   token  text: of its lease
--
-- A message whose lease has expired goes back to the front of ready, behind older ones that came
-- back before. It is a suspect: it may have ended the process that held it. Its entry in suspects
-- counts the expiries in a row, and has the token of the lease, so that release can take one back.
-- The expiry counts as a delivery only if claim has noted "alone", because any of the messages that
-- a process held may have ended it. If that was the last delivery, the message is dead. The flag
-- "d" of its record says that a delivery ended and did not count.
-- A subscription holds fewer messages than the budget, so they come back in one call and in order.
-- In a group with SingleActive all leases end with the first, because the owner extends them
-- together. The owner has failed then.
-- With messages, only their leases end, as if they had run out, and those of others go on. The
-- subscription that had them learns of it by its next extension. If it were told at once, it would
-- claim again before others do.
-- Returns {"stale"} when the group set has changed, else
-- REPLY
--   ok          text: "ok"
--   taken_back  number: of messages
--   left        number: 1 if more leases may have run out
-- Twice: the second run finds no lease that the first has taken back.

local long = string.rep('-', 65)

--@use now post wake active id_length precedes group_options freed origin

-- Tells whether the entry a of ready belongs before the entry b, because it was due earlier.
local function older(a, b)
  local due, other = tonumber(string.match(a, ':(%d+)$')) or 0, tonumber(string.match(b, ':(%d+)$')) or 0
  return due < other or (due == other and precedes(string.sub(a, 1, id_length), string.sub(b, 1, id_length)))
end

-- Returns the messages of the call whose leases are still the same, from the last to the first.
local function named(leases)
  local all, same = {}, {}
  for i = 1, message_count do
    --@each message i id
    all[i] = id
  end
  local held = redis.call('HMGET', leases, unpack(all))
  for i = message_count, 1, -1 do
    --@each message i token
    if held[i] == token then
      same[#same + 1] = all[i]
    end
  end
  return same
end

if redis.call('HGET', meta, 'groups') ~= version then
  return {'stale'}
end
-- Read every key that is written later: one of a wrong type is found before the first write.
redis.call('HLEN', options)
if single then
  redis.call('HLEN', active)
end
if bounded then
  redis.call('HLEN', limits)
end
for g = 1, group_count do
  --@each group g ready unack leases deliveries dead waiters stats suspects
  redis.call('LLEN', ready)
  redis.call('ZCARD', unack)
  redis.call('HLEN', leases)
  redis.call('HLEN', deliveries)
  redis.call('ZCARD', dead)
  redis.call('ZCARD', waiters)
  redis.call('HLEN', stats)
  redis.call('HLEN', suspects)
end

local total, left = 0, 0
for g = 1, group_count do
  if total >= budget then
    left = 1
    break
  end
  --@each group g ready unack leases deliveries dead waiters stats suspects name

  -- From the last to the first, so that each goes in front of those behind it. The fraction of a
  -- deadline does not count, so that messages that were claimed together come back together.
  local before = '(' .. string.format('%d', now + 1)
  local ids = message_count > 0 and named(leases)
    or redis.call('ZREVRANGEBYSCORE', unack, before, '-inf', 'LIMIT', 0, budget)
  local a = single and #ids > 0 and read_active(name)
  if a then
    ids = redis.call('ZREVRANGEBYSCORE', unack, '+inf', '-inf', 'LIMIT', 0, budget)
  end
  if #ids == budget then
    left = 1
  end
  if #ids > 0 then
    local tokens = redis.call('HMGET', leases, unpack(ids))
    local records = redis.call('HMGET', deliveries, unpack(ids))
    local noted = redis.call('HMGET', suspects, unpack(ids))
    local o = read_options(redis.call('HGET', groups, name))

    redis.call('ZREM', unack, unpack(ids))
    -- Redis searches a small hash from end to end. One long text makes it a table, for as long as
    -- it exists. So the text goes only when the others are there.
    local unfolded = #ids > 16 and {deliveries, suspects} or {}
    for _, key in ipairs(unfolded) do
      redis.call('HSET', key, long, '')
    end
    redis.call('HDEL', leases, unpack(ids))
    local entries = {}
    local suspected, died = 0, 0
    for i, id in ipairs(ids) do
      local count, flag, delayed_for, said = string.match(records[i] or '', '^(%d+) (%S+) (%S+)(.*)$')
      if not count then -- there is no record, or it has another form
        count, flag, delayed_for, said = 0, '-', '-', ''
      end
      count = tonumber(count)
      local expiries, alone = string.match(noted[i] or '', '^(%d+) (%S+)')
      local limit = -1
      if alone == 'alone' then
        count = count + 1
        local own = redis.call('HGET', options, id)
        limit = tonumber(own and string.match(own, 'max_deliveries:(-?%d+)') or o and o.max_deliveries) or -1
      end
      flag = string.find(flag, 'r', 1, true) and 'r' or 'd'
      if o and o.history then
        delayed_for = with_origin(delayed_for, records[i], tokens[i], true)
      end
      local record = string.format('%d', count) .. ' ' .. flag .. ' ' .. delayed_for
      if limit > 0 and count >= limit then
        redis.call('HSET', deliveries, id, record .. ' lease expired on the last of '
          .. string.format('%d', limit) .. ' deliveries')
        redis.call('HDEL', suspects, id)
        redis.call('ZADD', dead, now, id)
        died = died + 1
      else
        redis.call('HSET', deliveries, id, record .. said)
        redis.call('HSET', suspects, id,
          string.format('%d', (tonumber(expiries) or 0) + 1) .. ' - ' .. (tokens[i] or '-'))
        suspected = suspected + (expiries and 0 or 1)
        local due = tokens[i] and string.match(tokens[i], ':(%d+)$') or string.format('%d', now)
        entries[#entries + 1] = id .. ':' .. due
      end
    end
    for _, key in ipairs(unfolded) do
      redis.call('HDEL', key, long)
    end
    if #entries > 0 then
      -- Messages that came back before and are older stay in front.
      local front, f, merged = redis.call('LRANGE', ready, 0, budget - 1), 1, {}
      for i = #entries, 1, -1 do
        while front[f] and older(front[f], entries[i]) do
          merged[#merged + 1] = front[f]
          f = f + 1
        end
        merged[#merged + 1] = entries[i]
      end
      if f > 1 then
        redis.call('LTRIM', ready, f - 1, -1)
      end
      for i = 1, math.floor(#merged / 2) do -- the first is pushed last
        merged[i], merged[#merged + 1 - i] = merged[#merged + 1 - i], merged[i]
      end
      redis.call('LPUSH', ready, unpack(merged))
      redis.call('HINCRBY', stats, 'returned', #merged)
      if not a then
        wake(waiters, math.min(#entries, 16))
      end
    end
    if a and redis.call('ZCARD', unack) == 0 then
      a.ends = now
      write_active(name, a)
    end
    redis.call('HINCRBY', stats, 'expired', #ids)
    if bounded then
      freed(name) -- the caller promotes again
    end
    if suspected > 0 then
      redis.call('HINCRBY', stats, 'suspects', suspected)
    end
    if died > 0 then
      redis.call('HINCRBY', stats, 'dead_lease', died)
    end
    total = total + #ids
  end
end
return {'ok', total, left}
