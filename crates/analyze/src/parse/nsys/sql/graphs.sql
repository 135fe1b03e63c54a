-- One row per launch of a CUDA graph that was traced as a whole (--cuda-graph-trace=graph).
--   start_ns, end_ns   of the whole launch on the device; both 0 if CUPTI could not time it
--   device             2147483647 if the graph's first node runs on the host
select {start} as start_ns, {end} as end_ns, {deviceId} as device, {streamId} as stream,
    {globalPid} as process,
       {correlationId} as correlation, {graphId} as graph
from CUPTI_ACTIVITY_KIND_GRAPH_TRACE
