-- One row per fill of device memory. It has no kind.
select {start} as start_ns, {end} as end_ns, null as kind, {bytes} as bytes, {deviceId} as device,
       {globalPid} as process, {correlationId} as correlation, {graphNodeId} as graph_node,
       {streamId} as stream, null as source_kind, null as target_kind
from CUPTI_ACTIVITY_KIND_MEMSET
