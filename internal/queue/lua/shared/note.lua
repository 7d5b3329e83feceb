-- note: reads and writes what attend notes of a subscription.
--
-- Defines  read_note(text), write_note(note, heard, gone)
--
-- The text is "<since> <seen> <until> <heard> <gone> <who> <address>". heard is the history in
-- which the server heard the process. It is "-" if the server did not, or if disown is done with
-- the process. gone is since when the process is known to be gone, 0 if it is not.

-- Returns nil for a text of another form.
local function read_note(text)
  local seen, heard, gone, who, address =
    string.match(text or '', '^(%d+ %d+ %d+) (%S+) (%d+) (%S+ %S+ %S+ %S+) (.*)$')
  return seen and {seen = seen, heard = heard, gone = tonumber(gone), who = who, address = address}
end

-- Returns the text of a note with other values.
local function write_note(note, heard, gone)
  return string.format('%s %s %d %s ', note.seen, heard, gone, note.who) .. note.address
end
