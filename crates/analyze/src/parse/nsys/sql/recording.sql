-- One row per recorded machine.
--   end_ns             end of the recording, since its start
select {duration} as end_ns
from ANALYSIS_DETAILS
