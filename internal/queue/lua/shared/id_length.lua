-- id_length: the form of the entries of ready.
--
-- CONSTANTS
--   id_length = 26  bytes of an id; ":" and the due time follow in an entry
--
-- Defines  id_length, nobody  the id in an entry that is out of force

local nobody = string.rep('0', id_length)
