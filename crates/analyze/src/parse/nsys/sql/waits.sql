-- One row per synchronisation. The stream is -1 if there is no single one.
select {globalPid} as process, {correlationId} as correlation,
       {streamId} as stream
from CUPTI_ACTIVITY_KIND_SYNCHRONIZATION
