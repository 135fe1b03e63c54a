-- One row per call of the CUDA runtime or driver.
select {start} as start_ns, {end} as end_ns, {globalTid} as thread, {nameId} as name, {correlationId} as correlation
from CUPTI_ACTIVITY_KIND_RUNTIME
