-- publish: takes the messages of one numbered call into the topic, all or none.
--
-- KEYS  1 meta       hash: layout, groups (the version of the group set), maxlen (only of a topic
--                    with a stream)
--       2 messages   hash: id -> body
--       3 pending    zset: id -> due ms
--       4 options    hash: id -> options, only of messages that have any
--       5 refs       hash: id -> number of groups that still need the body, if more than one
--       6 scheduler  hash: next, holder, standby, until
--       7 publisher  string: number of this publisher's last call, expiring
--       8 names      hash: delay id -> id
--       9 taken      zset: delay id -> ms at which it is free
--       10 stats     hash: counters of the topic
--       then for each group of the set:
--         ready      list of "id:due"
--         retry      zset: id -> due ms
--         waiters    zset: address of an idle subscription -> ms until which it is valid
--         The window comes last, if there is one.
--       or for the one group of a topic with a stream:
--         stream     that due messages go into
--         retry      zset: id -> due ms
--         paused     hash: group, or "" for the topic -> ms since when
--       then only if a message has a guard or a delay id that ends in "%40" and digits, or the
--       topic has groups with SingleActive:
--         schedules  hash: recurring schedule -> record
--       then only if the topic has groups with SingleActive:
--         active     hash: group -> "owner epoch ends lease"
-- ARGV  1 version    of the group set that KEYS were made from
--       2 number     of this call; the publisher counts its calls
--       3 memory     ms for which the number is remembered
--       4 n          number of messages
--       5 runs       number of runs; the messages of a run have the same due
--       6 limit      messages that may wait at most; 0 for no limit
--       7 soonest    ms of the earliest instant at which a message is due; 0 if one has no delay;
--                    later than any instant if all have a relative delay
--       8 together   sizes of the parts of the call that may be refused alone, "size size ..."
--       9 window     ms at which the window ends that is the last group; 0 if none is
--       then for each message: id, body
--       then for each run:
--         count      of its messages
--         due        ms from now, or "@" and an instant in ms
--       then for each message that has options, in the same order: id, options
--
-- The delay id of a message may be that of another message that waits. Then the message replaces
-- that one, or is left out ("mode:keep"), or the call is refused ("mode:reject"). From its time in
-- taken on, a delay id is free.
-- A message with a guard is an occurrence of a recurring schedule, and has the delay id
-- "<schedule>%40<instant>". Its option "guard" is "<version>:<after>:<earliest>:<latest>:<missed>",
-- and is not stored. The message is left out unless the schedule has that version, runs, and has
-- its cursor at the instant after, and now is from earliest to latest. Else the cursor moves to the
-- instant, and missed is added to the missed occurrences, with the time. Because of earliest, the
-- cursor never follows a clock that was ahead, but has gone back. Of an occurrence that somebody
-- asked for, the guard is "<version>:run": then run of the schedule has to be the instant, and is
-- cleared.
-- The reply says why a guard left its message out:
--   "changed"    the schedule has another version, or is gone
--   "faster"     the cursor is at the instant or past it: another program was faster
--   "paused"     the schedule is paused
--   "apart"      the occurrence before is not in the topic, because its guard left that out
--   "early"      now is before earliest
--   "late"       now is past latest
--   "cancelled"  somebody cancelled the occurrence; the cursor has moved
-- All but "faster" and "cancelled" are counted.
-- Other messages may not have the delay id of an occurrence of a schedule that exists.
-- A due message goes to ready of each group at once. It goes to pending if something older is due
-- and not moved yet. So it does if there is no group, or if the call has too many messages for so
-- many groups.
-- A window gets it like a group, unless it is over or full.
-- In a topic with a stream it goes into the stream at once and is not kept. While that topic is
-- paused, it waits in pending.
-- Returns "ok" and, for each message that its guard left out, its id and why; "repeated"; "stale"
-- when the group set has changed; or why the call is refused:
--   "reserved" and ids  messages whose delay ids are for occurrences of a recurring schedule
--   "exists" and ids  messages with mode:reject whose delay ids messages of earlier calls have
--   "twice" and ids   messages with mode:reject whose delay ids come before in this call
--   "full" and room   the number of messages that there is room for
-- The ids are a thousand at most.
-- Only "ok" means that something was written, but for refused_full in stats. That counts the
-- messages of the parts that no call has room for. If the stream refuses an entry, the call fails
-- with the server's error and writes nothing.
-- Twice: the second run finds its number remembered and writes nothing.

local meta, messages, pending, options = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local refs, scheduler, publisher, names, taken = KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local stats = KEYS[10]
local version, number, memory = ARGV[1], ARGV[2], ARGV[3]
local n, runs, limit = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local soonest, window = tonumber(ARGV[7]), tonumber(ARGV[9])
local groups = math.floor((#KEYS - 10) / 3)
local consumers = window > 0 and groups - 1 or groups -- groups that have subscriptions
local schedules, active = KEYS[11 + groups * 3], KEYS[12 + groups * 3]
local budget = 50000 -- messages times groups that one step moves at most
local args = ARGV
-- The indexes in args of the first message, run and options.
local first_message = 10
local first_run = first_message + n * 2
local first_option = first_run + runs * 2

--@use now due_of post wake active expect each put fields_of
--@use timetable amend_timetable window

local topic = redis.call('HMGET', meta, 'groups', 'maxlen')
if topic[1] ~= version then
  return 'stale'
end
local maxlen = tonumber(topic[2] or nil) -- of the stream, if there is one
local last = redis.call('GET', publisher)
if last and tonumber(last) >= tonumber(number) then
  return 'repeated'
end

-- Read every key that is written later: one of a wrong type is found before the first write.
-- messages need not be read without a stream, because it is the first key that is written.
if maxlen then
  redis.call('HLEN', messages)
  redis.call('XLEN', KEYS[11]) -- if it has a wrong type, no later message can be moved either
end
if first_option <= #ARGV then
  redis.call('HLEN', options)
end
redis.call('HLEN', stats)
if active then
  redis.call('HLEN', active)
end
if window > 0 and not takes(window, groups, KEYS[8 + groups * 3]) then
  groups = consumers
end
local head = redis.call('ZRANGE', pending, 0, 0, 'WITHSCORES')[2]
-- Only messages that are due now are written to the keys of groups.
local direct = soonest <= now and groups > 0 and n * groups <= budget and not (head and tonumber(head) <= now)
if direct and groups > 1 then
  redis.call('HLEN', refs)
end
local waiting, backlog = {}, 0
for g = 1, direct and consumers or 0 do
  local ready, retry, waiters = KEYS[8 + g * 3], KEYS[9 + g * 3], KEYS[10 + g * 3]
  if maxlen then
    direct = redis.call('HLEN', waiters) == 0 -- here the key paused
  else
    redis.call('LLEN', ready)
    waiting[g] = redis.call('ZCARD', waiters)
  end
  head = redis.call('ZRANGE', retry, 0, 0, 'WITHSCORES')[2]
  direct = direct and not (head and tonumber(head) <= now)
  if not direct then break end
end
-- If all messages are ready at once, there is no event, and the key scheduler is not used.
if direct and runs == 1 and first_option > #ARGV and not active and due_of(ARGV[first_run + 1]) == now then
  scheduler = nil
end
--@use schedule
for g = 1, limit > 0 and consumers or 0 do
  local wait = maxlen and 0 or redis.call('LLEN', KEYS[8 + g * 3])
  backlog = math.max(backlog, wait + redis.call('ZCARD', KEYS[9 + g * 3]))
end

-- Decide about messages with a delay id, as if they were published one after the other: messages of
-- this call that are left out, messages of earlier calls that are replaced, and for each delay id
-- its owner and until when.
local left_out, replaced = {}, {}
local n_replaced, n_left_out = 0, 0 -- messages of this call or earlier ones, to be counted
local n_stale = 0 -- occurrences of this call that their guards leave out
local verdicts, n_refused = {}, 0 -- of these: id and why; and how many are counted
local refused, twice, reserved = {}, {}, {}
local named, owner, free = {}, {}, {}
local dues -- id -> due ms, of this call's messages
local moved, plans = {}, {} -- names of recurring schedules that change, and their records

-- Returns why the guard of an occurrence leaves it out, or nil. Changes the record of its schedule.
local function verdict(delay_id, guard)
  local name, at = string.match(delay_id, '^(.*)%%40(%d+)$')
  local r = name and (plans[name] or read_schedule(name))
  local version, plan = string.match(guard, '^(%d+):(.*)$')
  if not r or r.version ~= tonumber(version) then
    return 'changed'
  end
  local after, earliest, latest, missed = string.match(plan, '^(%d+):(%d+):(%d+):(%d+)$')
  if not after and r.run ~= at or after and r.cursor >= tonumber(at) then
    return 'faster'
  elseif after and r.paused ~= '0' then
    return 'paused'
  elseif after and r.cursor ~= tonumber(after) then
    return 'apart'
  elseif after and now < tonumber(earliest) then
    return 'early'
  elseif after and now > tonumber(latest) then
    return 'late'
  end
  if not plans[name] then
    moved[#moved + 1], plans[name] = name, r
  end
  if not after then
    r.run, r.last = '0', math.max(r.last, tonumber(at))
    return
  end
  r.cursor = tonumber(at)
  if missed ~= '0' then
    r.missed, r.counted = r.missed + tonumber(missed), string.format('%d', now)
  end
  if r.known[at] then -- it was cancelled by hand
    return 'cancelled'
  elseif tonumber(at) + r.jitter <= now then
    r.last = math.max(r.last, tonumber(at))
  else
    r.waiting[#r.waiting + 1], r.known[at] = at, true
  end
end

for i = first_option, #ARGV, 2 do
  local name = string.match(ARGV[i + 1], 'delay_id:(%S+)')
  local guard = schedules and string.match(ARGV[i + 1], ' guard:(%S+)')
  if guard then
    ARGV[i + 1] = string.gsub(ARGV[i + 1], ' guard:%S+', '', 1)
    local why = verdict(name, guard)
    if why then
      left_out[ARGV[i]], name, n_stale = true, nil, n_stale + 1
      verdicts[#verdicts + 1] = ARGV[i] .. ' ' .. why
      if why ~= 'faster' and why ~= 'cancelled' then
        n_refused = n_refused + 1
      end
    end
  elseif name and schedules then
    local schedule_name = string.match(name, '^(.*)%%40%d+$')
    if schedule_name and read_schedule(schedule_name) and #reserved < 1000 then
      reserved[#reserved + 1] = ARGV[i]
    end
  end
  if name then
    if not dues then
      redis.call('HLEN', names)
      dues = {}
      local at = first_message
      for r = first_run, first_option - 1, 2 do
        local stop, due = at + tonumber(ARGV[r]) * 2, due_of(ARGV[r + 1])
        for j = at, stop - 1, 2 do
          dues[ARGV[j]] = due
        end
        at = stop
      end
    end
    local id, own = ARGV[i], ARGV[i + 1]
    if not free[name] then
      named[#named + 1] = name
      owner[name] = redis.call('HGET', names, name)
      free[name] = tonumber(redis.call('ZSCORE', taken, name) or 0)
    end
    local mode, before = string.match(own, 'mode:(%a+)'), owner[name]
    local is_taken = before and free[name] > now
    if is_taken and mode == 'reject' then
      if not dues[before] then
        refused[#refused + 1] = id
        if #refused == 1000 then break end
      elseif #twice < 1000 then
        twice[#twice + 1] = id
      end
    elseif is_taken and mode == 'keep' then
      left_out[id] = true
      n_left_out = n_left_out + 1
    else
      if is_taken then
        local due = dues[before]
        if due and due > now then
          left_out[before] = true
          n_replaced = n_replaced + 1
        elseif not due and tonumber(redis.call('ZSCORE', pending, before) or 0) > now then
          replaced[#replaced + 1] = before
          n_replaced = n_replaced + 1
        end
      end
      owner[name] = id
      free[name] = dues[id] + tonumber(string.match(own, 'window:(%d+)') or 0)
    end
  end
end

if #reserved > 0 then
  return 'reserved ' .. table.concat(reserved, ' ')
elseif #refused > 0 then
  return 'exists ' .. table.concat(refused, ' ')
elseif #twice > 0 then
  return 'twice ' .. table.concat(twice, ' ')
end

-- In a topic with a stream, due messages go into that at once. The parts below leave them out.
local entries = {}
if maxlen and direct then
  direct = false
  local expires = {}
  for i = first_option, #ARGV, 2 do
    expires[ARGV[i]] = tonumber(string.match(ARGV[i + 1], 'expires_at:(%d+)') or nil)
  end
  local at = first_message
  for r = first_run, first_option - 1, 2 do
    local stop = at + tonumber(ARGV[r]) * 2
    if due_of(ARGV[r + 1]) == now then
      for i = at, stop - 1, 2 do
        local id = ARGV[i]
        -- A message that has expired is left to promote_stream, which drops it.
        if not left_out[id] and not (expires[id] and expires[id] <= now) then
          local fields = fields_of(ARGV[i + 1])
          if not fields then
            return redis.error_reply('ERR message ' .. id .. ' is not in the form of a stream entry')
          end
          entries[#entries + 1] = fields
          left_out[id] = true
        end
      end
    end
    at = stop
  end
end

if next(left_out) then
  args = {}
  for i = 1, first_message - 1 do
    args[i] = ARGV[i]
  end
  for i = first_message, first_run - 1, 2 do
    if not left_out[ARGV[i]] then
      args[#args + 1], args[#args + 2] = ARGV[i], ARGV[i + 1]
    end
  end
  local run, at = #args + 1, first_message
  for r = first_run, first_option - 1, 2 do
    local count, stop = 0, at + tonumber(ARGV[r]) * 2
    for i = at, stop - 1, 2 do
      if not left_out[ARGV[i]] then
        count = count + 1
      end
    end
    if count > 0 then
      args[#args + 1], args[#args + 2] = count, ARGV[r + 1]
    end
    at = stop
  end
  local option = #args + 1
  for i = first_option, #ARGV, 2 do
    if not left_out[ARGV[i]] then
      args[#args + 1], args[#args + 2] = ARGV[i], ARGV[i + 1]
    end
  end
  first_run, first_option, n = run, option, (run - first_message) / 2
end
if limit > 0 and n > #replaced then
  local room = math.max(limit - redis.call('ZCARD', pending) - backlog, 0)
  if n - #replaced > room then
    local full = 0
    for size in string.gmatch(ARGV[8], '%d+') do
      full = full + (tonumber(size) > room and size or 0)
    end
    if full > 0 then
      redis.call('HDEL', stats, '') -- after a deletion, a script may write at maxmemory too
      redis.call('HINCRBY', stats, 'refused_full', full)
    end
    return string.format('full %d', room)
  end
end

-- If the stream refuses an entry, for lack of memory or of ids, take back the entries of this call.
local added = {}
for i, fields in ipairs(entries) do
  local id = redis.pcall('XADD', KEYS[11], '*', unpack(fields))
  if type(id) == 'table' then
    each('XDEL', KEYS[11], added, 1, #added)
    return id
  end
  added[i] = id
end
if #entries > 0 and maxlen > 0 then
  -- The length is a text, because Lua would write 1e+17. By default XTRIM removes about 10,000
  -- entries at most, so that a stream would grow with larger calls.
  local trim = {KEYS[11], 'MAXLEN', '~', topic[2]}
  if #entries > 5000 then
    trim[5], trim[6] = 'LIMIT', 2 * #entries
  end
  redis.call('XTRIM', unpack(trim))
end

put(messages, args, first_message, first_run - 1)
put(options, args, first_option, #args)
redis.call('SET', publisher, number, 'PX', memory)

local delayed, ready_now, counts = {}, {}, {}
local n_delayed, n_ready = 0, 0 -- because # searches for the end of a list each time
local next_due
local at = first_message -- index in args of the next id
for r = first_run, first_option - 1, 2 do
  local due, score = due_of(args[r + 1])
  score = score or string.format('%d', due)
  local stop = at + tonumber(args[r]) * 2
  if direct and due == now then
    local suffix = ':' .. score
    for i = at, stop - 1, 2 do
      n_ready = n_ready + 1
      ready_now[n_ready] = args[i] .. suffix
      if groups > 1 then
        counts[n_ready * 2 - 1], counts[n_ready * 2] = args[i], groups
      end
    end
  else
    for i = at, stop - 1, 2 do
      delayed[n_delayed + 1], delayed[n_delayed + 2] = score, args[i]
      n_delayed = n_delayed + 2
    end
    if not next_due or due < next_due then
      next_due = due
    end
  end
  at = stop
end

each('ZREM', pending, replaced, 1, #replaced)
each('HDEL', messages, replaced, 1, #replaced)
each('HDEL', options, replaced, 1, #replaced)
for _, name in ipairs(named) do
  if free[name] > now then
    redis.call('HSET', names, name, owner[name])
    redis.call('ZADD', taken, string.format('%d', free[name]), name)
    if not next_due or free[name] < next_due then
      next_due = free[name]
    end
  else
    redis.call('HDEL', names, name)
    redis.call('ZREM', taken, name)
  end
end
each('ZADD', pending, delayed, 1, n_delayed)
put(refs, counts, 1, #counts)
if n_ready > 0 then
  for g = 1, groups do
    each('RPUSH', KEYS[8 + g * 3], ready_now, 1, n_ready)
    if g <= consumers and waiting[g] > 0 then
      local ends = expect(KEYS[10 + g * 3], wake(KEYS[10 + g * 3], math.min(n_ready, 16)))
      if ends and (not next_due or ends < next_due) then
        next_due = ends
      end
    end
  end
end
if next_due and groups > 0 then
  schedule(next_due)
end
for _, name in ipairs(moved) do
  write_schedule(name, plans[name])
end
local published = ARGV[4] - n_left_out - n_stale
if published > 0 then
  redis.call('HINCRBY', stats, 'published', published)
end
if n_replaced > 0 then
  redis.call('HINCRBY', stats, 'replaced', n_replaced)
end
if n_left_out > 0 then
  redis.call('HINCRBY', stats, 'left_out', n_left_out)
end
if n_refused > 0 then
  redis.call('HINCRBY', stats, 'refused_occurrences', n_refused)
end
return #verdicts > 0 and 'ok ' .. table.concat(verdicts, ' ') or 'ok'
