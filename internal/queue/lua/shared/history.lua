-- history: keeps a line for each message that ended, in a stream.
--
-- Uses     now, messages, options, read_origin
-- Defines  histories()
--
-- Callers read the length of the stream before their first write: a key of a wrong type is found
-- then. Nothing that is written to the stream can fail the script.

-- Returns the functions for histories. They are made here, so that a group without one does not pay
-- for them.
local function histories()
  local made = {}
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

  -- Returns a line of each message. The call comes before anything of the messages is deleted.
  -- records are their records in the group, or nil. uuids are their UUIDs, or nil to read the
  -- bodies.
  function made.lines_of(ids, records, uuids)
    local own = redis.call('HLEN', options) > 0 and redis.call('HMGET', options, unpack(ids)) or {}
    local lines, read = {}, 0
    for i, id in ipairs(ids) do
      local record = records and records[i]
      local due, first, last = read_origin(record)
      local uuid = uuids and uuids[i]
      if not uuid then
        local size = redis.call('HSTRLEN', messages, id)
        if read + size <= bodies_size then
          read = read + size
          uuid = uuid_of(redis.call('HGET', messages, id) or '')
        end
      end
      local count, name = string.match(record or '', '^%d+') or '0', string.match(own[i] or '', 'delay_id:(%S+)') or ''
      local line = {id = id, uuid = uuid or '', name = name, due = due or '0', first = first or '0', last = last or '0'}
      line.count, line.by = count, ''
      lines[i] = line
    end
    return lines
  end

  -- Adds the lines, with how the messages ended. bounds is "<ms>:<number>": older lines, and more,
  -- go. The server removes about ten thousand at most. Without another line all go in time.
  function made.keep(stream, bounds, how, lines)
    local ms, most = string.match(bounds, '^(%d+):(%d+)$')
    local at = string.format('%d', now)
    for _, l in ipairs(lines) do
      redis.pcall('XADD', stream, '*', 'how', how, 'id', l.id, 'uuid', l.uuid, 'name', l.name, 'due', l.due,
        'first', l.first, 'last', l.last, 'count', l.count, 'by', l.by, 'at', at)
    end
    redis.pcall('PEXPIRE', stream, ms)
    redis.pcall('XTRIM', stream, 'MAXLEN', '~', most)
    redis.pcall('XTRIM', stream, 'MINID', '~', string.format('%d', now - ms))
  end

  -- Keeps the lines of several streams. all has {stream, bounds, lines} of each.
  function made.keep_all(how, all)
    for _, one in ipairs(all) do
      made.keep(one[1], one[2], how, one[3])
    end
  end

  return made
end
