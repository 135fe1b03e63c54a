-- One row per copy on a device.
select {start} as start_ns, {end} as end_ns, coalesce({copyKind}, 0) as kind, {bytes} as bytes,
    {deviceId} as device,
       {globalPid} as process, {correlationId} as correlation, {graphNodeId} as graph_node,
       {streamId} as stream, {srcKind} as source_kind, {dstKind} as target_kind
from CUPTI_ACTIVITY_KIND_MEMCPY
