-- publish: takes the messages of one numbered call into the topic, all or none.
--
-- KEYS
--   meta       hash: layout, groups (the version of the group set), maxlen (only of a topic with a
--              stream)
--   messages   hash: id -> body
--   pending    zset: id -> due ms
--   options    hash: id -> options, only of messages that have any
--   refs       hash: id -> number of groups that still need the body, if more than one
--   scheduler  hash: next, holder, standby, until
--   publisher  string: number of this publisher's last call, expiring
--   names      hash: delay id -> id
--   taken      zset: delay id -> ms at which it is free
--   counters   hash: counters of the topic
--   schedules  hash: recurring schedule -> record
--   active     hash: group -> "owner epoch ends lease", of groups with SingleActive
--   paused     hash: group, or "" for the topic -> "<ms since when> <by> <why>"
--   stream     stream: that due messages go into, in a topic with a stream
--   groups     hash: group -> options
--   ended      stream: a line of each message that ended before a group had it
-- KEYS of each group
--   ready    list: "id:due"
--   retry    zset: id -> due ms
--   waiters  zset: address of an idle subscription -> ms until which it is valid The window comes
--            last, if there is one.
-- ARGV
--   version   text: of the group set that KEYS were made from
--   number    text: of this call; the publisher counts its calls
--   memory    text: ms for which the number is remembered
--   limit     number: messages that may wait at most; 0 for no limit
--   soonest   number: ms of the earliest instant at which a message is due; 0 if one has no delay;
--             later than any instant if all have a relative delay
--   together  text: sizes of the parts of the call that may be refused alone, "size size ..."
--   window    number: ms at which the window ends that is the last group; 0 if none is
--   single    flag: the topic may have groups with SingleActive
--   recurs    flag: a message has a guard, or a delay id that ends in "%40" and digits
--   recorded  flag: the topic may have groups with a history, which tells what is replaced
-- ARGV of each message
--   id    text: in the order of the ids
--   body  text: what the Marshaler made
-- ARGV of each run
--   count  number: of its messages, which have the same due
--   due    text: ms from now, or "@" and an instant in ms
-- ARGV of each option
--   of   text: id of a message that has options, in the same order
--   own  text: these options
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
-- Only "ok" means that something was written, but for refused_full in counters. That counts the
-- messages of the parts that no call has room for. If the stream refuses an entry, the call fails
-- with the server's error and writes nothing.
-- Twice: the second run finds its number remembered and writes nothing.

local consumers = window > 0 and group_count - 1 or group_count -- groups that have subscriptions
local budget = 50000 -- messages times groups that one step moves at most
local args, n, last_option = ARGV, message_count, first_option + option_count * 2 - 1

--@use now due_of post wake active expect each put fields_of
--@use timetable amend_timetable window group_options origin history whole

local last = redis.call('GET', publisher)
if last and tonumber(last) >= tonumber(number) then
  return 'repeated'
end
local topic = redis.call('HMGET', meta, 'groups', 'maxlen')
if topic[1] ~= version then
  return 'stale'
end
local maxlen = tonumber(topic[2] or nil) -- of the stream, if there is one

-- Read every key that is written later: one of a wrong type is found before the first write.
-- messages need not be read without a stream, because it is the first key that is written.
if maxlen then
  redis.call('HLEN', messages)
  redis.call('XLEN', stream) -- if it has a wrong type, no later message can be moved either
end
if option_count > 0 then
  redis.call('HLEN', options)
end
redis.call('HLEN', counters)
if single then
  redis.call('HLEN', active)
end
if window > 0 then
  --@each group group_count ready
  if not takes(window, group_count, ready) then
    group_count = consumers
  end
end
local head = redis.call('ZRANGE', pending, 0, 0, 'WITHSCORES')[2]
-- Only messages that are due now are written to the keys of groups.
local direct = soonest <= now and group_count > 0 and n * group_count <= budget and not (head and tonumber(head) <= now)
if direct and group_count > 1 then
  redis.call('HLEN', refs)
end
local waiting, backlog = {}, 0
for g = 1, direct and consumers or 0 do
  --@each group g ready retry waiters
  if maxlen then
    direct = redis.call('HLEN', paused) == 0
  else
    redis.call('LLEN', ready)
    waiting[g] = redis.call('ZCARD', waiters)
  end
  head = redis.call('ZRANGE', retry, 0, 0, 'WITHSCORES')[2]
  direct = direct and not (head and tonumber(head) <= now)
  if not direct then break end
end
-- If all messages are ready at once, there is no event, and the key scheduler is not used.
if direct and run_count == 1 and option_count == 0 and not single and due_of(ARGV[first_run + 1]) == now then
  scheduler = nil
end
--@use grace schedule
for g = 1, limit > 0 and consumers or 0 do
  --@each group g ready retry
  local wait = maxlen and 0 or redis.call('LLEN', ready)
  backlog = math.max(backlog, wait + redis.call('ZCARD', retry))
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
  if after and tonumber(at) + r.jitter <= r.ends then
    return 'paused'
  elseif not after and r.run ~= at or after and r.cursor >= tonumber(at) then
    return 'faster'
  elseif after and r.paused ~= '0' and r.ends == 0 then
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
  r.failure = string.gsub(r.failure, '^(%d+),%d+', '%1,0', 1)
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

for i = first_option, last_option, 2 do
  local name = string.match(ARGV[i + 1], 'delay_id:(%S+)')
  local guard = recurs and string.match(ARGV[i + 1], ' guard:(%S+)')
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
  elseif name and recurs then
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
  for i = first_option, last_option, 2 do
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
  for i = first_option, last_option, 2 do
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
    for size in string.gmatch(together, '%d+') do
      full = full + (tonumber(size) > room and size or 0)
    end
    if full > 0 then
      redis.call('HDEL', counters, '') -- after a deletion, a script may write at maxmemory too
      redis.call('HINCRBY', counters, 'refused_full', full)
    end
    return string.format('full %d', room)
  end
end

-- If the stream refuses an entry, for lack of memory or of ids, take back the entries of this call.
local added = {}
for i, fields in ipairs(entries) do
  local id = redis.pcall('XADD', stream, '*', unpack(fields))
  if type(id) == 'table' then
    each('XDEL', stream, added, 1, #added)
    return id
  end
  added[i] = id
end
if #entries > 0 and maxlen > 0 then
  -- The length is a text, because Lua would write 1e+17. By default XTRIM removes about 10,000
  -- entries at most, so that a stream would grow with larger calls.
  local trim = {stream, 'MAXLEN', '~', topic[2]}
  if #entries > 5000 then
    trim[5], trim[6] = 'LIMIT', 2 * #entries
  end
  redis.call('XTRIM', unpack(trim))
end

local bounds = recorded and #replaced > 0 and whole_bounds()
local record = bounds and histories()
local lines = {} -- of messages that are replaced
if record then
  record.expect(ended)
  local by = {}
  for _, name in ipairs(named) do
    by[name] = owner[name]
  end
  for i = 1, #replaced, 1000 do
    for _, l in ipairs(record.lines_of({unpack(replaced, i, math.min(i + 999, #replaced))})) do
      lines[#lines + 1] = l
      l.due, l.by = redis.call('ZSCORE', pending, l.id), by[l.name] or ''
    end
  end
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
      if group_count > 1 then
        counts[n_ready * 2 - 1], counts[n_ready * 2] = args[i], group_count
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
  for g = 1, group_count do
    --@each group g ready waiters
    each('RPUSH', ready, ready_now, 1, n_ready)
    if g <= consumers and waiting[g] > 0 then
      local ends = expect(waiters, wake(waiters, math.min(n_ready, 16)))
      if ends and (not next_due or ends < next_due) then
        next_due = ends
      end
    end
  end
end
if next_due and group_count > 0 then
  schedule(next_due)
end
for _, name in ipairs(moved) do
  write_schedule(name, plans[name])
end
local published = message_count - n_left_out - n_stale
if published > 0 then
  redis.call('HINCRBY', counters, 'published', published)
end
if n_replaced > 0 then
  redis.call('HINCRBY', counters, 'replaced', n_replaced)
end
if n_left_out > 0 then
  redis.call('HINCRBY', counters, 'left_out', n_left_out)
end
if n_refused > 0 then
  redis.call('HINCRBY', counters, 'refused_occurrences', n_refused)
end
if record then
  record.keep(ended, bounds, 'replaced', lines, counters)
end
return #verdicts > 0 and 'ok ' .. table.concat(verdicts, ' ') or 'ok'
