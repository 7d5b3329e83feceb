-- history: keeps a line for each message that ended, in a stream.
--
-- Uses     messages, options, read_origin
-- Defines  histories()
--
-- Callers find a stream or counters of a wrong type before their first write. Nothing else fails
-- the script: a user may lack the commands. Then lines are missing, or lack the UUID, or stay for
-- too long, and history_failed in the counters has how many.

-- Returns the functions for histories. They are made here, so that a group without one does not pay
-- for them.
local function histories()
  local made = {}
  local t = redis.call('TIME')
  local now_ms = t[1] * 1000 + math.floor(t[2] / 1000)
  local bodies_size = 1048576 -- bytes of bodies that a call reads for their UUIDs at most

  -- Returns the UUID in a body that a Marshaler of this project made, "" for another one.
  local function uuid_of(body)
    if string.byte(body) == 1 then
      local size, from = string.byte(body, 2) or 0, 3
      if size == 0 then -- it is packed
        local text = string.gsub(string.sub(body, 3, 18), '.', function(c) return string.format('%02x', string.byte(c)) end)
        return table.concat({string.sub(text, 1, 8), string.sub(text, 9, 12), string.sub(text, 13, 16), string.sub(text, 17, 20), string.sub(text, 21)}, '-')
      end
      if size > 127 then
        size, from = size - 128 + (string.byte(body, 3) or 0) * 128, 4
      end
      return string.sub(body, from, from + size - 2)
    end
    local size, at = string.match(body, '^(%d+) %d+ ()')
    if size then
      return string.sub(body, at, at + size - 1)
    end
    return string.match(body, '^{"v":1,"uuid":"([^"\\]*)"') or ''
  end

  -- Finds a stream of a wrong type. A user who may not read its length goes on.
  function made.expect(stream)
    local length = redis.pcall('XLEN', stream)
    if type(length) == 'table' and string.find(length.err, 'WRONGTYPE', 1, true) then
      redis.call('XLEN', stream)
    end
  end

  -- Returns a line of each message. The call comes before anything of the messages is deleted.
  -- records are their records in the group, or nil. uuids are their UUIDs, or nil to read the
  -- bodies.
  function made.lines_of(ids, records, uuids)
    local own = redis.call('HLEN', options) > 0 and redis.call('HMGET', options, unpack(ids)) or {}
    local lines, read = {}, 0
    for i, id in ipairs(ids) do
      local record = records and records[i]
      local due, first, last = read_origin(record)
      local uuid, refused = uuids and uuids[i], false
      if not uuid then
        local size = redis.pcall('HSTRLEN', messages, id)
        refused = type(size) == 'table'
        if not refused and read + size <= bodies_size then
          read = read + size
          uuid = uuid_of(redis.call('HGET', messages, id) or '')
        end
      end
      local count, name = string.match(record or '', '^%d+') or '0', string.match(own[i] or '', 'delay_id:(%S+)') or ''
      local line = {id = id, uuid = uuid or '', name = name, due = due or '0', first = first or '0', last = last or '0'}
      line.count, line.by, line.refused = count, '', refused
      lines[i] = line
    end
    return lines
  end

  -- Adds the lines, with how the messages ended. bounds is "<ms>:<number>": older lines, and more,
  -- go. Without another line all go in time. Lines that failed are counted in counters, a hash.
  function made.keep(stream, bounds, how, lines, counters)
    local ms, most = string.match(bounds, '^(%d+):(%d+)$')
    local at, failed = string.format('%d', now_ms), 0
    for i = math.max(#lines - most + 1, 1), #lines do
      local l = lines[i]
      local added = redis.pcall('XADD', stream, '*', 'how', how, 'id', l.id, 'uuid', l.uuid, 'name', l.name, 'due', l.due,
        'first', l.first, 'last', l.last, 'count', l.count, 'by', l.by, 'at', at)
      failed = failed + ((l.refused or type(added) == 'table') and 1 or 0)
    end
    -- By default XTRIM removes about 10,000 entries at most, so that a stream would grow with
    -- larger calls.
    local limit = #lines > 5000 and {'LIMIT', 2 * #lines} or {}
    local bounded = {redis.pcall('PEXPIRE', stream, ms), redis.pcall('XTRIM', stream, 'MAXLEN', '~', most, unpack(limit)),
      redis.pcall('XTRIM', stream, 'MINID', '~', string.format('%d', now_ms - ms), unpack(limit))}
    for _, reply in ipairs(bounded) do
      failed = type(reply) == 'table' and #lines or failed
    end
    if failed > 0 then
      redis.pcall('HINCRBY', counters, 'history_failed', failed)
      redis.pcall('HSET', counters, 'history_failed_at', at)
    end
  end

  -- Keeps the lines of several streams. all has {stream, bounds, lines, counters} of each.
  function made.keep_all(how, all)
    for _, one in ipairs(all) do
      made.keep(one[1], one[2], how, one[3], one[4])
    end
  end

  return made
end
