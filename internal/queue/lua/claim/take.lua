-- take: reads the bodies of the entries, until their bytes are enough, and prepares the leases.
--
-- Defines  taken, bodies, taken_records, taken_expiries, n, consumed, orphans, scores, tokens,
--          changed, worst, unfold

-- Redis orders leases with one deadline by their ids. Where an id is not after the one before it,
-- the deadline gets a larger fraction, which keeps the order. The operator < compares by the
-- server's locale. A few locales order some letters in another way, and there such messages may
-- come back in another order. To compare bytes would make every claim slower by a fifth.
local before, place, score = '', 0, deadline
if latest[1] then
  before, score = latest[1], latest[2]
  place = (tonumber(score) - now - lease) * 1024
end

-- These lists have counters, because # searches for the end of a list each time.
local taken, bodies, taken_records, n = {}, {}, {}, 0
local taken_expiries, changed, worst = {}, {}, 0 -- changed: entries of suspects; worst: most expiries
local scores, tokens, filled = {}, {}, 0 -- entries of scores, and of tokens
local due, due_token -- of the message before, because many have the same
-- Redis searches a small hash or zset from end to end, which would cost more than all else here.
-- One long text makes it a table, for as long as it exists. So a long text goes in and out again.
local unfold = leased <= 512 and leased + allowed > 16
if unfold then
  scores, tokens, filled = {0, long}, {long, ''}, 2
end
local orphans, consumed, size, full = {}, 0, 0, false
while consumed < allowed and not full do
  -- Read one body, then as many as fit if they are as large as those so far. A body that does not
  -- fit is read in vain, so eight at most.
  local some = 1
  if n > 0 then
    some = math.floor((bytes - size) / (math.max(size, 1) / n))
    some = math.max(1, math.min(some, 8))
  end
  local found = redis.call('HMGET', messages, unpack(ids, consumed + 1, math.min(consumed + some, allowed)))
  for i = 1, #found do
    local body = found[i]
    if body and size > 0 and size + #body > bytes then
      full = true
      break
    end
    consumed = consumed + 1
    local id, entry = ids[consumed], entries[consumed]
    local expiries = 0
    if suspected then
      expiries = expiries_of(noted[consumed])
      worst = math.max(worst, expiries)
    end
    if body then
      size = size + #body
      if id < before and place < 1023 then
        place = place + 1
        score = string.format('%.17g', now + lease + place / 1024)
      end
      before = id
      n = n + 1
      taken[n], bodies[n] = entry, body
      if #records > 0 then
        taken_records[n] = records[consumed] or ''
      end
      if suspected then
        taken_expiries[n] = expiries
        local alone = company(expiries) == 1 and ' alone ' or ' - '
        local text = expiries > 0 and string.gsub(noted[consumed], ' %S+ ', alone, 1)
        if text and text ~= noted[consumed] then
          changed[#changed + 1] = id
          changed[#changed + 1] = text
        end
      end
      local its_due = string.sub(entry, id_length + 1)
      if its_due ~= due then
        due, due_token = its_due, token .. its_due
      end
      scores[filled + 1], scores[filled + 2] = score, id
      tokens[filled + 1], tokens[filled + 2] = id, due_token
      filled = filled + 2
    elseif id ~= nobody then
      orphans[#orphans + 1] = id
    end
  end
end
