-- permit: finds the commands that the caller may not run, before a script fails in its middle.
--
-- KEYS  1 meta     hash: layout, groups; it stays as it is
--       2 nothing  a key that does not exist, and stays so
-- ARGV  1 command  its name; any number of commands
--
-- Each command is called in a way that fails or does nothing: on a key of another type, with a
-- value that is no number, without values, or on a key that does not exist. The server refuses a
-- command that is not allowed before that, with another error.
-- Returns {policy, command, ...}, or {} if there is no such topic. policy is maxmemory-policy, or
-- "" if there is no limit or the server does not say. The commands are those that are not allowed.
-- Twice: the second run returns the same.

local meta, nothing = KEYS[1], KEYS[2]

local fields = redis.pcall('HLEN', meta)
if fields == 0 then -- there is no topic, and no call here may create its key
  return {}
elseif type(fields) == 'table' then
  if string.find(fields['err'], 'WRONGTYPE', 1, true) then
    return fields
  end
  return {'', 'HLEN'} -- whether there is a topic is not known
end
local one, two = {meta}, {meta, ''}
local samples = {
  ['TIME'] = {}, ['GET'] = one, ['HLEN'] = one, ['HKEYS'] = one, ['ZCARD'] = one, ['LLEN'] = one,
  ['HGET'] = two, ['HMGET'] = two, ['HEXISTS'] = two, ['ZSCORE'] = two,
  ['ZCOUNT'] = {meta, 0, 0}, ['ZRANGE'] = {meta, 0, 0}, ['ZRANGEBYSCORE'] = {meta, 0, 0}, ['ZREVRANGEBYSCORE'] = {meta, 0, 0},
  ['LRANGE'] = {meta, 0, 0},
  ['DEL'] = {nothing}, ['SET'] = {nothing, '', 'XX'},
  ['HDEL'] = {nothing, ''}, ['HSET'] = {nothing, '', '', ''}, ['HINCRBY'] = {nothing, '', 'no number'},
  ['LPUSH'] = two, ['RPUSH'] = two, ['LPOP'] = one, ['LTRIM'] = {meta, 0, -1},
  ['ZADD'] = {nothing, 'no number', ''}, ['ZREM'] = two, ['ZPOPMIN'] = one,
  ['ZREMRANGEBYSCORE'] = {meta, 0, 0}, ['ZREMRANGEBYRANK'] = {meta, 0, 0},
  ['SISMEMBER'] = two, ['SADD'] = two, ['SREM'] = two,
  ['EXISTS'] = {nothing}, ['TYPE'] = {nothing}, ['PTTL'] = {nothing}, ['PEXPIRE'] = {nothing, 1}, ['PERSIST'] = {nothing}, ['UNLINK'] = {nothing},
  ['HSCAN'] = {nothing, 0}, ['ZSCAN'] = {nothing, 0}, ['LSET'] = {nothing, 0, ''},
  ['XLEN'] = one, ['XADD'] = {meta, '*', '', ''}, ['XDEL'] = {meta, '0-0'}, ['XTRIM'] = {meta, 'MAXLEN', '~', 0},
}

local reply = {''}
for _, command in ipairs(ARGV) do
  local sample = samples[command]
  if sample then
    local result = redis.pcall(command, unpack(sample))
    local said = type(result) == 'table' and result['err'] or ''
    if string.find(said, "can't run this command", 1, true) or string.find(said, 'NOPERM', 1, true)
      or string.find(said, 'no permissions', 1, true) then
      reply[#reply + 1] = command
    end
  end
end
local info = redis.pcall('INFO', 'memory')
if type(info) == 'string' and not string.find(info, 'maxmemory:0%c') then
  reply[1] = string.match(info, 'maxmemory_policy:([%w-]+)') or ''
end
return reply
