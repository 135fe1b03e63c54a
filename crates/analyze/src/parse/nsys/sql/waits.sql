-- One row per synchronisation. The stream is -1 if there is no single one.
select {globalPid} as process, {correlationId} as correlation,
       {deviceId} as device, {streamId} as stream
from CUPTI_ACTIVITY_KIND_SYNCHRONIZATION
