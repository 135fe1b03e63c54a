-- One row per call of the operating system that took long enough to be traced. They correlate with nothing.
select {start} as start_ns, {end} as end_ns, {globalTid} as thread, {nameId} as name, null as correlation
from OSRT_API
