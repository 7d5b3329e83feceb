-- permit: finds the commands that the caller may not run, or the server does not have, before a
-- script fails in its middle.
--
-- KEYS
--   meta     hash: layout, groups; it stays as it is
--   nothing  key: a key that does not exist, and stays so
--   text     key: a key that does not exist; while the script runs it may be a string
-- ARGV
--   opens  flag: the commands are tried even if there is no such topic
-- ARGV of each command
--   command  text: its name
--
-- Each command is called in a way that fails or does nothing: on a key of another type, with a
-- value that is no number, without values, or on a key that does not exist. The server refuses a
-- command that is not allowed before that, with another error, and one that it does not have, too.
-- Returns {} if there is no such topic, else
-- REPLY
--   policy  text: maxmemory-policy, or "" if there is no limit or the server does not say
-- REPLY of each command
--   refusal  text: "<command> forbidden" or "<command> absent"; of those that are refused
-- Twice: the second run returns the same.

local function refusal(result)
  local said = type(result) == 'table' and result['err'] or ''
  if string.find(said, "can't run this command", 1, true) or string.find(said, 'NOPERM', 1, true)
    or string.find(said, 'no permissions', 1, true) then
    return 'forbidden'
  elseif string.find(said, 'Unknown .-command called from') then
    return 'absent'
  end
end

local fields = redis.pcall('HLEN', meta)
local known = not refusal(fields) -- whether there is a topic
if known and type(fields) == 'table' then
  return fields
elseif fields == 0 and not opens then
  return {}
end

-- Some commands make a key that does not exist. They are tried on one of another type.
local other, unmade = meta, nil
if not known or fields == 0 then
  local made = redis.pcall('SET', text, '', 'PX', 1) -- it ends even if DEL is not allowed
  other, unmade = made['ok'] and text, refusal(made)
end
local makes = {['LPUSH'] = true, ['RPUSH'] = true, ['SADD'] = true, ['XADD'] = true}

local one, two = {meta}, {meta, ''}
local samples = {
  ['TIME'] = {}, ['GET'] = one, ['HLEN'] = one, ['HKEYS'] = one, ['HGETALL'] = one, ['HSTRLEN'] = two, ['ZCARD'] = one, ['LLEN'] = one,
  ['HGET'] = two, ['HMGET'] = two, ['HEXISTS'] = two, ['ZSCORE'] = two,
  ['ZCOUNT'] = {meta, 0, 0}, ['ZRANGE'] = {meta, 0, 0}, ['ZRANGEBYSCORE'] = {meta, 0, 0}, ['ZREVRANGEBYSCORE'] = {meta, 0, 0},
  ['LRANGE'] = {meta, 0, 0},
  ['DEL'] = {nothing}, ['SET'] = {nothing, '', 'XX'},
  ['HDEL'] = {nothing, ''}, ['HSET'] = {nothing, '', '', ''}, ['HINCRBY'] = {nothing, '', 'no number'},
  ['LPUSH'] = {other or '', ''}, ['RPUSH'] = {other or '', ''}, ['LPOP'] = one, ['LTRIM'] = {meta, 0, -1},
  ['ZADD'] = {nothing, 'no number', ''}, ['ZREM'] = two, ['ZPOPMIN'] = one,
  ['ZREMRANGEBYSCORE'] = {meta, 0, 0}, ['ZREMRANGEBYRANK'] = {meta, 0, 0},
  ['SISMEMBER'] = two, ['SADD'] = {other or '', ''}, ['SREM'] = two,
  ['EXISTS'] = {nothing}, ['TYPE'] = {nothing}, ['PTTL'] = {nothing}, ['PEXPIRE'] = {nothing, 1}, ['PERSIST'] = {nothing}, ['UNLINK'] = {nothing},
  ['HSCAN'] = {nothing, 0}, ['ZSCAN'] = {nothing, 0}, ['LSET'] = {nothing, 0, ''},
  ['XLEN'] = one, ['XADD'] = {other or '', '*', '', ''}, ['XDEL'] = {meta, '0-0'}, ['XTRIM'] = {meta, 'MAXLEN', '~', 0},
}

local reply = {''}
for i = 1, command_count do
  --@each command i command
  local verdict
  if makes[command] and not other then -- a user without SET may lack it too
    verdict = unmade == 'forbidden' and unmade
  elseif samples[command] then
    verdict = refusal(redis.pcall(command, unpack(samples[command])))
  end
  if verdict then
    reply[#reply + 1] = command .. ' ' .. verdict
  end
end
if other == text then
  redis.pcall('DEL', text)
end
local info = redis.pcall('INFO', 'memory')
if type(info) == 'string' and not string.find(info, 'maxmemory:0%c') then
  reply[1] = string.match(info, 'maxmemory_policy:([%w-]+)') or ''
end
return reply
