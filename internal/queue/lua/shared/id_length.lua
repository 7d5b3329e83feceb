-- id_length: the form of the entries of ready.
--
-- Defines  id_length  bytes of an id; ":" and the due time follow in an entry
--          nobody     the id in an entry that is out of force

local id_length = 26
local nobody = string.rep('0', id_length)
