// Products of a weight matrix with one vector, bound by the bandwidth of the weights.
#include "common.cuh"

// 16-byte loads of weights that a lane keeps in flight.
constexpr int DEPTH = 8;

// Sum over k of w[k] * x[k], the same in every lane of the warp. Weights stream; x is cached.
template <typename T>
__device__ __forceinline__ float dot(const T* w, const T* x, int k) {
    const int lane = threadIdx.x % 32;
    float sum = 0.f;
    for (int base = lane * WIDE<T>; base < k; base += DEPTH * 32 * WIDE<T>) {
        uint4 raw[DEPTH];
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const int i = base + d * 32 * WIDE<T>;
            raw[d] = i < k ? load_streaming(w + i) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            const int i = base + d * 32 * WIDE<T>;
            if (i < k) {
                float weights[WIDE<T>], values[WIDE<T>];
                unpack<T>(raw[d], weights);
                load_wide(x + i, values);
#pragma unroll
                for (int j = 0; j < WIDE<T>; j++) sum += weights[j] * values[j];
            }
        }
    }
    return warp_sum(sum);
}

// y[n] = sum over k of w[n][k] * x[k] [+ bias[n]]. One warp per row.
template <typename T>
__device__ __forceinline__ void gemv_body(
    const T* w, const T* x, const T* bias, T* y, int n, int k) {
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= n) return;
    float sum = dot(w + size_t(row) * k, x, k);
    if (threadIdx.x % 32 == 0) y[row] = from_float<T>(bias ? sum + to_float(bias[row]) : sum);
}

// h[s][i] = silu(gate_i . x) * (up_i . x) of expert ids[s]: weights [experts, 2 * width, k], gates
// before ups. One warp per value; blockIdx.y is s. Without ids there is one expert.
template <typename T>
__device__ __forceinline__ void expert_up_body(
    const T* w, const T* x, const uint32_t* ids, T* h, int width, int k) {
    const int i = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, slot = blockIdx.y;
    if (i >= width) return;
    const T* expert = w + size_t(ids ? ids[slot] : 0) * 2 * width * k;
    const int lane = threadIdx.x % 32;
    const T* gate_row = expert + size_t(i) * k;
    const T* up_row = expert + size_t(width + i) * k;
    float gate = 0.f, up = 0.f;
    constexpr int PAIRS = 5;
    for (int base = lane * WIDE<T>; base < k; base += PAIRS * 32 * WIDE<T>) {
        uint4 gates[PAIRS], ups[PAIRS];
#pragma unroll
        for (int d = 0; d < PAIRS; d++) {
            const int c = base + d * 32 * WIDE<T>;
            gates[d] = c < k ? load_streaming(gate_row + c) : make_uint4(0, 0, 0, 0);
            ups[d] = c < k ? load_streaming(up_row + c) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int d = 0; d < PAIRS; d++) {
            const int c = base + d * 32 * WIDE<T>;
            if (c < k) {
                float a[WIDE<T>], b[WIDE<T>], values[WIDE<T>];
                unpack<T>(gates[d], a);
                unpack<T>(ups[d], b);
                load_wide(x + c, values);
#pragma unroll
                for (int j = 0; j < WIDE<T>; j++) gate += a[j] * values[j], up += b[j] * values[j];
            }
        }
    }
    gate = warp_sum(gate), up = warp_sum(up);
    if (lane == 0) h[size_t(slot) * width + i] = from_float<T>(silu(gate) * up);
}

// y[n] = sum over slots s, in order, of weights[s] * (down_n of expert ids[s] . h[s]): weights
// [experts, n, k]. A block has a warp per slot and computes ROWS values.
constexpr int ROWS = 2;
template <typename T>
__device__ __forceinline__ void expert_down_body(
    const T* w, const T* h, const uint32_t* ids, const float* weights, T* y, int n, int k) {
    __shared__ float parts[32][ROWS];
    const int slot = threadIdx.x / 32, slots = blockDim.x / 32, row = blockIdx.x * ROWS;
    const T* expert = w + size_t(ids[slot]) * n * k;
    const T* x = h + size_t(slot) * k;
    const int lane = threadIdx.x % 32;
    float sums[ROWS] = {};
    constexpr int STEPS = 4;
    for (int base = lane * WIDE<T>; base < k; base += STEPS * 32 * WIDE<T>) {
        uint4 raw[ROWS][STEPS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#pragma unroll
            for (int d = 0; d < STEPS; d++) {
                const int c = base + d * 32 * WIDE<T>;
                raw[r][d] = c < k && row + r < n ? load_streaming(expert + size_t(row + r) * k + c)
                                                 : make_uint4(0, 0, 0, 0);
            }
        }
#pragma unroll
        for (int d = 0; d < STEPS; d++) {
            const int c = base + d * 32 * WIDE<T>;
            if (c < k) {
                float values[WIDE<T>];
                load_wide(x + c, values);
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    float a[WIDE<T>];
                    unpack<T>(raw[r][d], a);
#pragma unroll
                    for (int j = 0; j < WIDE<T>; j++) sums[r] += a[j] * values[j];
                }
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        sums[r] = warp_sum(sums[r]);
        // Each is rounded to T before it is weighted, as by the grouped kernels.
        if (lane == 0) parts[slot][r] = to_float(from_float<T>(sums[r])) * weights[slot];
    }
    __syncthreads();
    if (threadIdx.x < ROWS && row + threadIdx.x < n) {
        float sum = 0.f;
        for (int s = 0; s < slots; s++) sum += parts[s][threadIdx.x];
        y[row + threadIdx.x] = from_float<T>(sum);
    }
}

#define KERNELS(T, NAME)                                                                         \
    extern "C" __global__ void __launch_bounds__(256)                                            \
        gemv_##NAME(const T* w, const T* x, const T* bias, T* y, int n, int k) {                 \
        gemv_body<T>(w, x, bias, y, n, k);                                                       \
    }                                                                                            \
    extern "C" __global__ void __launch_bounds__(256)                                            \
        expert_up_##NAME(const T* w, const T* x, const uint32_t* ids, T* h, int width, int k) {  \
        expert_up_body<T>(w, x, ids, h, width, k);                                               \
    }                                                                                            \
    extern "C" __global__ void __launch_bounds__(1024) expert_down_##NAME(                       \
        const T* w, const T* h, const uint32_t* ids, const float* weights, T* y, int n, int k) { \
        expert_down_body<T>(w, h, ids, weights, y, n, k);                                        \
    }
FOR_EACH_TYPE(KERNELS)
