-- One row per device that a process sees: a process with selected devices numbers them from 0.
select {pid} as pid, {cudaId} as device, {gpuId} as gpu from TARGET_INFO_CUDA_DEVICE
