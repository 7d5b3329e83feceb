-- permit: tries which commands the caller may not run, so that no script fails in its middle for want of one.
--
-- KEYS  1 meta     hash: layout, groups; it stays as it is
--       2 nothing  a key that does not exist, and stays so
-- ARGV  1 command  its name, and so on
--
-- Each is called so that it fails, or has nothing to do: with a key of another type, a value that is no number,
-- fields without values, or a key that does not exist. Who may not call it gets another
-- error, before.
-- Returns {policy, command, ...}: maxmemory-policy, if there is a limit and the server says so, or ""; and the
-- commands that the caller may not run. Nothing, if there is no such topic.
-- Twice: the second run tells the same.

local meta, nothing = KEYS[1], KEYS[2]

local fields = redis.pcall('HLEN', meta)
if fields == 0 then -- there is no topic, and it must not come to be as something else
  return {}
elseif type(fields) == 'table' then
  if string.find(fields['err'], 'WRONGTYPE', 1, true) then
    return fields
  end
  return {'', 'HLEN'} -- nobody knows whether there is one
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
