-- One row per GPU of the host.
--   uuid               as the tool prints it, without the driver's `GPU-`
--   clock_hz           highest clock of its multiprocessors
--   bytes_per_s        bandwidth of its memory
select {id} as id, {name} as name, {uuid} as uuid, {totalMemory} as memory_bytes,
    {clockRate} as clock_hz,
       {smCount} as sm_count, {l2CacheSize} as l2_bytes, {maxWarpsPerSm} as warps_per_sm,
       {memoryBandwidth} as bytes_per_s,
       {computeMajor} as major, {computeMinor} as minor
from TARGET_INFO_GPU
order by {id}
