-- promote: takes or keeps the topic's scheduling lease, and moves due messages to ready.
--
-- KEYS
--   meta       hash: layout, groups (the version of the group set)
--   groups     hash: group -> options
--   pending    zset: id -> due ms
--   refs       hash: id -> number of groups that still need the body, if more than one
--   scheduler  hash: next (ms of the next event), holder, standby (addresses), until (ms), look (ms
--              of the next look for processes that are gone)
--   idle       zset: group with an expiry -> ms at which it is removed
--   names      hash: delay id -> id
--   taken      zset: delay id -> ms at which it is free
--   resumes    zset: group, or "" for the topic -> ms at which its pause ends
--   active     hash: group -> "owner epoch ends lease", of groups with SingleActive
--   limits     hash: group -> state of its limit, "full event woken since last cost"
-- KEYS of each group
--   ready    list: "id:due"
--   retry    zset: id -> due ms
--   unack    zset: id -> lease deadline ms
--   dead     zset: id -> ms at which it died
--   waiters  zset: address of an idle subscription -> ms until which it is valid
--   limited  zset: address of a subscription that waits for the limit -> ms until which it is
--            valid. The window comes last, if there is one.
-- ARGV
--   version   text: of the group set that KEYS were made from
--   me        text: address of the caller
--   patience  number: ms for which a standby stays one without a call
--   budget    number: messages times groups to move at most, and as many retries besides
--   window    number: ms at which the window ends that is the last group; 0 if none is
--   single    flag: the topic may have groups with SingleActive
--   bounded   flag: the topic may have groups with a limit
--   full      flag: the call does all there is, even if only a look for processes is due
-- ARGV of each group
--   name  text:
--
-- A window gets messages like a group, unless it is over or full.
-- When a group's limit allows more, it wakes as many as may claim, in turn.
-- The snippet role describes the lease.
-- Returns {"stale"} when the group set has changed, else
-- REPLY
--   role     text: "holder", "standby" or "other"
--   wait     text: microseconds until the caller has to look again; 0 or less: at once; "": never
--   expired  number: 1 if leases have run out
--   purge    number: 1 if a group has dead messages past their retention, or too many
--   unused   list: groups to remove, as many as one call removes at most
--   resume   number: 1 if a pause is over
--   failed   list: groups whose active subscription did not claim in time, so many at most
--   watch    number: 1 if the caller is to look for processes that are gone
--   partial  number: 1 if the call did nothing else
-- Twice: the second run finds only messages that the first has not moved.

--@use now grace heard removals role post wake active expect each put precedes due_at event
--@use free_names group_options keeps window bucket

if redis.call('HGET', meta, 'groups') ~= version then
  return {'stale'}
end

local role, wait = ask_role()
if role then -- the caller is not the holder
  return {role, wait, 0, 0, {}, 0, {}, 0, 0}
end

-- Tells whether a group has leases that end when their process is gone.
local function looked_for(unack, name)
  local o = redis.call('ZCARD', unack) > 0 and read_options(redis.call('HGET', groups, name))
  return o and not o.whole
end

if not full and not fault and look and look <= now and not (next_event and next_event <= now)
  and holder == me then
  local looks = false
  for g = 1, group_count do
    --@each group g unack name
    looks = looks or looked_for(unack, name)
  end
  redis.call('HDEL', scheduler, '')
  local again, watch = keep_role(next_event, looks, false)
  return {'holder', wait_until(again), 0, 0, {}, 0, {}, watch and 1 or 0, 1}
end

if window > 0 then
  --@each group group_count ready
  if not takes(window, group_count, ready) then
    group_count = group_count - 1
  end
end

-- Returns how many due messages of each source may move, if there are so many sources. The sources
-- are pending, whose messages go to all groups, and the retries of each group.
local function share_of(many)
  return math.max(1, math.floor(budget / math.max(1, many)))
end
local share = share_of(group_count) -- of pending

-- If a source has more due messages than its share, no source moves a message later than the last
-- of that share. So all messages stay in order.
local cut_due, cut_id

-- Returns ids and due times of a source's share, and lowers the cut to its last message if more may
-- be due.
local function take_due(key, most)
  local list = redis.call('ZRANGEBYSCORE', key, '-inf', now, 'WITHSCORES', 'LIMIT', 0, most)
  if #list == most * 2 then
    local id, due = list[#list - 1], tonumber(list[#list])
    if not cut_due or due < cut_due or (due == cut_due and precedes(id, cut_id)) then
      cut_due, cut_id = due, id
    end
  end
  return list
end

-- Returns the share of a key as runs, each with one due time and its ids, and the number of ids. A
-- score is a text that Redis writes and Lua keeps, a third of what a message costs, so this reads
-- ids alone. It reads one millisecond after the other if the first message was due a moment ago. It
-- reads all at once if the first and the last that may move are due in the same millisecond. Else
-- it returns nil.
local function take_runs(key)
  local first = due_at(key, 0)
  if not first or first > now then
    return {}, 0
  end
  if now - first >= 3 then
    local last = redis.call('ZRANGE', key, share - 1, share - 1, 'WITHSCORES')[2]
    if tonumber(last or nil) ~= first then return end
    return {{due = first, ids = redis.call('ZRANGE', key, 0, share - 1)}}, share
  end
  local runs, n, after = {}, 0, '-inf'
  for due = math.ceil(first), now do
    local ms = string.format('%d', due)
    local ids = redis.call('ZRANGEBYSCORE', key, after, ms, 'LIMIT', 0, share - n)
    runs[#runs + 1] = {due = due, ids = ids}
    n, after = n + #ids, '(' .. ms
    if n == share then break end
  end
  return runs, n
end

-- Tells whether a message is not behind the cut.
local function moves(list, i)
  local id, due = list[i], tonumber(list[i + 1])
  return due < cut_due or (due == cut_due and not precedes(cut_id, id))
end

-- Returns how many messages of a list move. Most often all do, and then it looks at the last only.
local function moving(list)
  local n = #list / 2
  if not cut_due or n == 0 or moves(list, n * 2 - 1) then
    return n
  end
  n = 0
  while moves(list, n * 2 + 1) do
    n = n + 1
  end
  return n
end

-- Read every key that is used later: one of a wrong type is found before the first write.
local retries, waiting, options = {}, {}, {}
local first_retry, first_deadline, first_dead = {}, {}, {}
local runs, moved = {}, 0 -- of pending, if take_runs can read it
local fresh = {} -- else its ids and due times, as those of retries
if group_count > 0 then
  local retrying = 0
  for g = 1, group_count do
    --@each group g retry
    local due = due_at(retry, 0)
    first_retry[g] = due
    retrying = retrying + (due and due <= now and 1 or 0)
  end
  for g = 1, group_count do
    --@each group g retry
    local due = first_retry[g]
    retries[g] = due and due <= now and take_due(retry, share_of(retrying)) or {}
  end
  if retrying == 0 then
    runs, moved = take_runs(pending)
  end
  if retrying > 0 or not runs then
    runs, moved, fresh = {}, 0, take_due(pending, share)
  end
  local last = first_group + group_count - 1
  for first = first_group, last, 1000 do
    local some = redis.call('HMGET', groups, unpack(ARGV, first, math.min(first + 999, last)))
    for i = 1, #some do
      options[first - first_group + i] = some[i]
    end
  end
end
for g = 1, group_count do
  --@each group g ready unack dead waiters
  redis.call('LLEN', ready)
  first_deadline[g] = due_at(unack, 0)
  first_dead[g] = due_at(dead, 0)
  waiting[g] = redis.call('ZCARD', waiters)
end
redis.call('HLEN', refs)
if single then
  redis.call('HLEN', active)
end
local bounds = bounded and redis.call('HLEN', limits) > 0 and buckets()
for g = 1, bounds and group_count or 0 do
  --@each group g limited
  redis.call('ZCARD', limited)
end
local first_end = due_at(idle, 0)
local unused = first_end and first_end <= now and redis.call('ZRANGEBYSCORE', idle, '-inf', now, 'LIMIT', 0, removals) or {}
local first_resume = due_at(resumes, 0)
local resume = first_resume and first_resume <= now
local first_free = redis.call('ZRANGE', taken, 0, 0, 'WITHSCORES')
if first_free[1] then
  redis.call('HLEN', names)
end

local merging = moving(fresh)
moved = moved + merging
-- The first write deletes a field that does not exist. After a deletion, a script may write at
-- maxmemory too.
redis.call('HDEL', scheduler, '')
local left = moved > 0 and {{key = pending, moved = moved}} or {}
if moved > 0 and group_count > 1 then
  local counts, n = {}, 0
  local function count(id)
    counts[n + 1], counts[n + 2] = id, group_count
    n = n + 2
  end
  for _, run in ipairs(runs) do
    for _, id in ipairs(run.ids) do
      count(id)
    end
  end
  for i = 1, merging * 2, 2 do
    count(fresh[i])
  end
  put(refs, counts, 1, n)
end

first_free = free_names(first_free)

-- Wakes those of a group that wait for its limit, if it is time, as many as may claim. If more may,
-- it wakes an idle one. Those of a group without a limit need not wait any more. Returns when the
-- next turn is, in ms, nil for none.
local function take_turns(g, name, limited, waiters, leased, messages)
  local o = read_options(options[g])
  local b = bounds.read(name, o and o.limit or {})
  if b.event == 0 or b.event > now then
    return b.event > now and b.event or nil
  end
  local waiting = redis.call('ZCARD', limited)
  local most = b.limit.interval or b.limit.at_once
  most = most and math.min(bounds.free(b, leased), math.max(messages, 1), 16) or waiting
  local told, gone = wake(limited, math.min(most, waiting))
  b.woken, b.event = told, 0
  local more = waiting > gone and bounds.token_at(b, told + 1)
  if more and more > now then
    b.event = more
  elseif told > 0 and waiting > gone then -- those that were woken may be gone
    b.event = now + bounds.moment
  end
  if o and o.limit then
    bounds.write(name, b)
  else
    redis.call('HDEL', limits, name)
  end
  upcoming(expect(limited, told, gone))
  if told < math.min(most, messages) then
    upcoming(expect(waiters, wake(waiters, 1)))
  end
  return b.event > 0 and b.event or nil
end

local expired, purge, looks
local failed = {}
for g = 1, group_count do
  --@each group g ready retry unack dead waiters limited name
  local again = retries[g]
  local retried = moving(again)

  local merged, n, f = {}, 0, 1
  local last_score, suffix
  local function push(list, i)
    if list[i + 1] ~= last_score then
      last_score = list[i + 1]
      suffix = ':' .. string.format('%d', tonumber(last_score))
    end
    n = n + 1
    merged[n] = list[i] .. suffix
  end
  for _, run in ipairs(runs) do
    local ids = run.ids
    suffix = ':' .. string.format('%d', run.due)
    for i = 1, #ids do
      merged[n + i] = ids[i] .. suffix
    end
    n = n + #ids
  end
  for r = 1, retried * 2, 2 do
    local due = tonumber(again[r + 1])
    while f <= merging * 2 do
      local fresh_due = tonumber(fresh[f + 1])
      if due < fresh_due or (due == fresh_due and precedes(again[r], fresh[f])) then break end
      push(fresh, f)
      f = f + 2
    end
    push(again, r)
  end
  for i = f, merging * 2, 2 do
    push(fresh, i)
  end
  if n > 0 then
    each('RPUSH', ready, merged, 1, n)
    if retried > 0 then
      left[#left + 1] = {key = retry, moved = retried}
      first_retry[g] = due_at(retry, retried)
    end
    if waiting[g] > 0 then
      expect(waiters, wake(waiters, math.min(n, 16)))
    end
  end

  upcoming(first_retry[g])
  local deadline = first_deadline[g]
  if deadline then
    deadline = math.floor(deadline)
    upcoming(deadline)
    if deadline <= now then
      expired = true
    end
    local o = read_options(options[g])
    looks = looks or o and not o.whole
  end
  local a = single and read_active(name)
  if a and a.ends > 0 then
    if a.ends <= now and deadline then -- it is the owner's lease that tells whether that lives
      a.ends = now + a.lease
      write_active(name, a)
    end
    upcoming(a.ends)
    if a.ends <= now and #failed < removals then
      failed[#failed + 1] = name
    end
  end
  if bounds and not (a and a.ends > 0 and a.ends <= now) then
    upcoming(take_turns(g, name, limited, waiters, redis.call('ZCARD', unack), redis.call('LLEN', ready)))
  end
  local purges = purge_at(options[g], dead, first_dead[g])
  upcoming(purges)
  if purges and purges <= now then
    purge = true
  end
end
if group_count > 0 then
  upcoming(due_at(pending, moved))
  upcoming(tonumber(first_free[2] or nil))
end
upcoming(first_end)
upcoming(first_resume)

local again, watch = keep_role(event, looks, not expired and not purge and #unused == 0 and not resume and #failed == 0)
-- Deletions by position are the last writes: see docs/design.md.
for _, from in ipairs(left) do
  redis.call('ZREMRANGEBYRANK', from.key, 0, from.moved - 1)
end
return {'holder', wait_until(again), expired and 1 or 0, purge and 1 or 0, unused,
  resume and 1 or 0, failed, watch and 1 or 0, 0}
