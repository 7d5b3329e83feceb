-- register: adds a consumer group to a topic, or renews its options.
--
-- KEYS
--   meta       hash: layout, groups (the version of the group set)
--   groups     hash: group -> options
--   pending    zset: id -> due ms
--   scheduler  hash: next, holder, standby, until
--   idle       zset: group with an expiry -> ms at which it is removed
--   stats      hash: of the group: counters and times
--   refs       hash: id -> number of groups that still need the body, if more than one
--   ready      list: of the group, "id:due"
--   kept       list: the ready list of the window that the caller knows
--   copied     list: the ready list of the group's copy of that window
--   limits     hash: group -> state of its limit, "full event woken since last cost"
-- ARGV
--   layout   text: the layout version that the caller writes
--   fresh    text: a random version for the changed set
--   group    text: the group's name
--   options  text: of the group, as the snippet group_options reads them
--   expiry   number: ms without use after which the group is removed; "" for never. The call may
--            put the removal off but not bring it forward, because another subscription may have
--            asked for the later one.
--   length   number: ms of the window that the group opens; 0 if it opens none and takes none over
--   given    text: name of the window that the caller knows; "" for none
--
-- Messages that waited for a first group are scheduled. A group that is being removed is not added,
-- because it would come back with a part of its messages. The caller finishes that removal first.
-- A group keeps its setting of SingleActive. A topic that has a group with it has another layout,
-- and its standby scheduler waits for a short time only. A topic with a limit or a history has
-- another layout too. A group keeps the limit and the history that an operator has set. The options
-- may have them for a new group.
-- A group opens a window if the set has no group but those of Broadcast. A later group gets what
-- the window has, all or nothing, and is in the set only when it has that. A call copies a thousand
-- messages at most, so that a larger window needs several calls. The copy is in idle meanwhile, so
-- that a scheduler removes it if no call follows within ten seconds.
-- Returns {"removing", group} to finish that removal first, {"window", name} to call again with its
-- keys, {"more"} to call again, or {"mode"} if the group has the other setting of SingleActive.
-- A topic of another layout is as it was. Else it returns
-- REPLY
--   ok       text: "ok"
--   taken    number: messages that the group got from the window
--   missed   number: messages that the window had when it became full, or ended before the copy
--            was whole: the group did not get them
--   waited   number: messages that were due before there was a group
--   layout   text: of the topic
--   version  text: of the group set
-- REPLY of each group
--   name  text: also of the window
-- Twice: the second run finds the group registered and keeps the version, or copies on.

local step, patience = 1000, 10000 -- messages that a call copies, and ms in which the next one comes

--@use now post grace schedule each put id_length window group_options marks freed
--@use count_wait

local found = redis.call('HMGET', meta, 'layout', 'groups')
local known = redis.call('HGET', groups, group)
local head = redis.call('ZRANGE', pending, 0, 0, 'WITHSCORES')
redis.call('ZCARD', idle)
redis.call('HLEN', stats)
redis.call('HLEN', limits)

local taken, missed, waited = 0, 0, 0

-- Returns the reply of a call that has found or added the group.
local function answer()
  local reply = {'ok', taken, missed, waited, found[1], found[2] or ''}
  for _, name in ipairs(redis.call('HKEYS', groups)) do
    reply[#reply + 1] = name
  end
  return reply
end

if found[1] and not is_known(found[1]) then
  return answer()
end
if not known and redis.call('ZSCORE', idle, group) == '0' then
  return {'removing', group}
end
if known then
  for _, word in ipairs({' set:%S+', ' set_history:%S+'}) do
    options = string.gsub(options, word, '') .. (string.match(known, word) or '')
  end
end
local asked = read_options(options)
local exclusive = asked.single
if known and read_options(known).single ~= exclusive then
  return {'mode'}
end

-- Of a new group: the window in the set, when it ends, and whether the set has groups besides, or
-- any that stays.
local window, ends, others, lasting
for _, name in ipairs(not known and redis.call('HKEYS', groups) or {}) do
  if is_window(name) then
    window, ends = name, tonumber(string.sub(name, #window_prefix + 1))
  else
    others = true
    lasting = lasting or string.sub(name, 1, 10) ~= 'broadcast:'
  end
end

local entries, counts, copying = {}, {}, false
if window and others and length > 0 and ends > now then
  if window ~= given then
    return {'window', window}
  end
  local copy = window .. ':' .. group
  local size, first = redis.call('LLEN', kept), redis.call('LLEN', copied)
  redis.call('LLEN', ready)
  redis.call('HLEN', refs)
  if size >= window_size then
    missed = size
  elseif redis.call('ZSCORE', idle, copy) == '0' then
    return {'removing', copy}
  else
    copying = true
    local more = size - first > step
    local all = redis.call('LRANGE', kept, more and first or 0, more and first + step - 1 or -1)
    -- An entry that is out of force begins with zeros, and no id of this century does.
    local void = {}
    for i = 1, #all do
      if string.byte(all[i], 2) == 48 and string.sub(all[i], 1, id_length) == nobody then
        void[#void + 1] = i
      end
    end
    -- Counts one group more, or one less, for the messages of some entries.
    local function count(from, to, by, only)
      local ids, n = {}, 0
      for i = from, to do
        local id = string.sub(all[i], 1, id_length)
        if id ~= nobody and (not only or only[id]) then
          n = n + 1
          ids[n] = id
        end
      end
      for i = 1, n, step do
        local last = math.min(i + step - 1, n)
        for j, before in ipairs(redis.call('HMGET', refs, unpack(ids, i, last))) do
          counts[#counts + 1] = ids[i + j - 1]
          counts[#counts + 1] = string.format('%d', (tonumber(before or nil) or 1) + by)
        end
      end
    end
    entries = all -- with those that are out of force, which keep the places of the others
    if more then
      count(1, #all, 1)
    elseif #void == 0 then
      count(first + 1, #all, 1)
    else
      -- A message that was cancelled came before the entry that tells so. The copy may have it.
      local cancelled, n = {[nobody] = true}, 0
      for _, i in ipairs(void) do
        cancelled[string.sub(all[i], id_length + 2)] = true
      end
      count(1, first, -1, cancelled)
      local fresh = {}
      for i = first + 1, #all do
        fresh[string.sub(all[i], 1, id_length)] = true
      end
      for id in pairs(cancelled) do
        fresh[id] = nil
      end
      count(first + 1, #all, 1, fresh)
      entries = {}
      for i = 1, #all do
        if not cancelled[string.sub(all[i], 1, id_length)] then
          n = n + 1
          entries[n] = all[i]
        end
      end
    end
    if more then
      put(refs, counts, 1, #counts)
      each('RPUSH', copied, entries, 1, #entries)
      redis.call('ZADD', idle, string.format('%d', now + patience), copy)
      schedule(now + patience)
      return {'more'}
    end
    taken = #entries
  end
end
if given ~= '' and not known and not copying and missed == 0 and redis.call('LLEN', copied) > 0 then
  missed = math.max(redis.call('LLEN', kept), redis.call('LLEN', copied)) -- it ended meanwhile
end
if not known and not others and head[2] then
  waited = redis.call('ZCOUNT', pending, '-inf', string.format('%d', now))
end

if known then
  -- The first write deletes nothing. After a deletion, a script may write at maxmemory too.
  redis.call('HDEL', scheduler, '')
end
put(refs, counts, 1, #counts)
each('RPUSH', ready, entries, 1, #entries)
local marked = marked_for(found[1] or '', asked)
if found[1] ~= marked or not found[2] or not known then
  found = {marked, fresh}
  redis.call('HSET', meta, 'layout', found[1], 'groups', fresh)
end
if exclusive then
  redis.call('HSET', scheduler, 'grace', short_grace)
end
if known ~= options then
  redis.call('HSET', groups, group, options)
  if not known then
    redis.call('HSET', stats, 'seen', string.format('%d', now))
  else
    schedule(now) -- with lower limits, dead messages are forgotten earlier
    freed(group)
    count_wait(group)
  end
end
if copying then
  redis.call('DEL', copied)
  redis.call('ZREM', idle, window .. ':' .. group)
elseif window and not lasting then
  -- The group that opened it is gone, and it may lack what came since: so it ends.
  redis.call('HDEL', groups, window)
  redis.call('ZADD', idle, 0, window)
  schedule(now)
end
if not known and not copying and not lasting and length > 0 then
  ends = now + length
  local name = window_prefix .. string.format('%d', ends)
  while redis.call('ZSCORE', idle, name) do -- an earlier window is being removed
    ends = ends + 1
    name = window_prefix .. string.format('%d', ends)
  end
  redis.call('HSET', groups, name, '-1 -1 -1')
  redis.call('ZADD', idle, string.format('%d', ends), name)
  schedule(ends)
end
if expiry then
  redis.call('ZADD', idle, 'GT', now + expiry, group)
  schedule(now + expiry)
else
  redis.call('ZREM', idle, group)
end
if head[2] then
  schedule(tonumber(head[2]))
end
return answer()
