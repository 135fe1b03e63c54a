-- One row per kernel that ran on a device.
--   correlation        the call that launched it, in the same process
--   graph_node         null unless a CUDA graph was traced by node
select {start} as start_ns, {end} as end_ns, {deviceId} as device, {streamId} as stream, {correlationId} as correlation,
       {globalPid} as process, {shortName} as name, {demangledName} as full_name, {registersPerThread} as registers,
       {gridX} as grid_x, {gridY} as grid_y, {gridZ} as grid_z, {blockX} as block_x, {blockY} as block_y, {blockZ} as block_z,
       {graphNodeId} as graph_node
from CUPTI_ACTIVITY_KIND_KERNEL
