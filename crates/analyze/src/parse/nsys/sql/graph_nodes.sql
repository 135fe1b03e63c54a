-- One row per created node of a CUDA graph.
--   original           the source node, if a captured graph was instantiated
select {start} as at_ns, {globalTid} as thread, {graphNodeId} as id,
    {originalGraphNodeId} as original
from CUDA_GRAPH_NODE_EVENTS
where {graphNodeId} is not null
