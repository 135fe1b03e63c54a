// RMSNorm and LayerNorm over rows, with the residual sum before them.
#include "common.cuh"

// y = norm(s) * weight [+ bias], with s = x [+ delta] rounded to T, and stored in `sum` if there is
// a delta. One block per row, which is kept in shared memory.
template <typename T, bool CENTRE>
__device__ __forceinline__ void norm_body(
    const T* x, const T* delta, const T* weight, const T* bias, T* sum, T* y, int width,
    float eps) {
    extern __shared__ float row[];
    __shared__ float scratch[32];
    const size_t base = size_t(blockIdx.x) * width;
    float total = 0.f, squares = 0.f;
    for (int i = threadIdx.x * WIDE<T>; i < width; i += blockDim.x * WIDE<T>) {
        float values[WIDE<T>], other[WIDE<T>];
        load_wide(x + base + i, values);
        if (delta) {
            load_wide(delta + base + i, other);
#pragma unroll
            for (int j = 0; j < WIDE<T>; j++)
                values[j] = to_float(from_float<T>(values[j] + other[j]));
            store_wide(sum + base + i, values);
        }
#pragma unroll
        for (int j = 0; j < WIDE<T>; j++) {
            row[i + j] = values[j];
            total += values[j];
            squares += values[j] * values[j];
        }
    }
    float mean = 0.f;
    if (CENTRE) {
        mean = block_sum(total, scratch) / width;
        squares = 0.f;
        for (int i = threadIdx.x * WIDE<T>; i < width; i += blockDim.x * WIDE<T>) {
#pragma unroll
            for (int j = 0; j < WIDE<T>; j++) squares += (row[i + j] - mean) * (row[i + j] - mean);
        }
    }
    const float scale = rsqrtf(block_sum(squares, scratch) / width + eps);
    for (int i = threadIdx.x * WIDE<T>; i < width; i += blockDim.x * WIDE<T>) {
        float values[WIDE<T>], by[WIDE<T>];
        load_wide(weight + i, by);
#pragma unroll
        for (int j = 0; j < WIDE<T>; j++) values[j] = (row[i + j] - mean) * scale * by[j];
        if (CENTRE) {
            load_wide(bias + i, by);
#pragma unroll
            for (int j = 0; j < WIDE<T>; j++) values[j] += by[j];
        }
        store_wide(y + base + i, values);
    }
}

#define KERNELS(T, NAME)                                                                     \
    extern "C" __global__ void rms_norm_##NAME(                                              \
        const T* x, const T* delta, const T* weight, const T* bias, T* sum, T* y, int width, \
        float eps) {                                                                         \
        norm_body<T, false>(x, delta, weight, bias, sum, y, width, eps);                     \
    }                                                                                        \
    extern "C" __global__ void layer_norm_##NAME(                                            \
        const T* x, const T* delta, const T* weight, const T* bias, T* sum, T* y, int width, \
        float eps) {                                                                         \
        norm_body<T, true>(x, delta, weight, bias, sum, y, width, eps);                      \
    }
FOR_EACH_TYPE(KERNELS)
