-- One row per node of a CUDA graph, when it was made.
--   original           the node that it was made from, when a captured graph was instantiated
select {start} as at_ns, {globalTid} as thread, {graphNodeId} as id, {originalGraphNodeId} as original
from CUDA_GRAPH_NODE_EVENTS
where {graphNodeId} is not null
