-- latest: keeps by how much messages were late at most, in this hour and in the one before.
--
-- Uses     now
-- Defines  latest_with(text, late)

-- Returns the text of field latest_ms of stats, "<ms> <hour> <ms in the hour before>", with one
-- more lateness in ms. The hour is the ms at which it began. An hour without a message counts as 0.
local function latest_with(text, late)
  local hour = now - now % 3600000
  local most, from, before = string.match(text or '', '^(%d+) (%d+) (%d+)$')
  if tonumber(from) ~= hour then
    before = tonumber(from) == hour - 3600000 and most or 0
    most = 0
  end
  return string.format('%d', math.max(tonumber(most), tonumber(late))) .. ' ' .. string.format('%d', hour) .. ' '
    .. before
end
