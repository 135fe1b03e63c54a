-- One row per sample of a thread on a core.
select {id} as sample, {start} as start, {globalTid} as thread
from COMPOSITE_EVENTS
order by {start}
