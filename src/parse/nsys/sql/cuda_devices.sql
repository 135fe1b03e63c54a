-- One row per device that a process saw: a process whose devices were chosen for it counts them from 0.
select {pid} as pid, {cudaId} as device, {gpuId} as gpu from TARGET_INFO_CUDA_DEVICE
