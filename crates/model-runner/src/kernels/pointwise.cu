// Kernels on each element or row: synthetic weights, embedding, biases and activations, windows.
#include "common.cuh"

// The same values as on the host: `mean + (sum of four 16-bit uniforms - centre) * scale` of a
// splitmix64 of the index.
__device__ __forceinline__ float synthetic(uint64_t seed, uint64_t index, float mean, float scale) {
    uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    const uint32_t sum = uint32_t(z & 0xffff) + uint32_t(z >> 16 & 0xffff) +
                         uint32_t(z >> 32 & 0xffff) + uint32_t(z >> 48);
    return __fadd_rn(mean, __fmul_rn(__fadd_rn(float(sum), -131070.f), scale));
}

template <typename T>
__device__ __forceinline__ void synthesise_body(
    T* out, uint64_t count, uint64_t seed, float mean, float scale) {
    const uint64_t step = uint64_t(gridDim.x) * blockDim.x;
    for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
        out[i] = from_float<T>(synthetic(seed, i, mean, scale));
    }
}

// Rows of a table by token. One block per row.
template <typename T>
__device__ __forceinline__ void embed_body(
    const uint32_t* tokens, const T* table, T* out, int width) {
    const T* row = table + size_t(tokens[blockIdx.x]) * width;
    T* to = out + size_t(blockIdx.x) * width;
    for (int i = threadIdx.x * WIDE<T>; i < width; i += blockDim.x * WIDE<T>) {
        *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(row + i);
    }
}

// Activations, numbered as on the host.
__device__ __forceinline__ float activate(float x, int function) {
    switch (function) {
        case 1:
            return 0.5f * x * (1.f + erff(x * 0.70710678118654752f));
        case 2:
            return x / (1.f + __expf(-1.702f * x));
        default:
            return x;
    }
}

// y = activate(x + bias [+ residual]) over rows of `width`; the residual repeats every `period`
// elements.
template <typename T>
__device__ __forceinline__ void bias_body(
    const T* x, const T* bias, const T* residual, T* y, uint64_t count, uint64_t period, int width,
    int function) {
    const uint64_t i = (uint64_t(blockIdx.x) * blockDim.x + threadIdx.x) * WIDE<T>;
    if (i >= count) return;
    float values[WIDE<T>], other[WIDE<T>];
    load_wide(x + i, values);
    if (bias) {
        load_wide(bias + i % width, other);
#pragma unroll
        for (int j = 0; j < WIDE<T>; j++) values[j] += other[j];
    }
    if (residual) {
        load_wide(residual + (period == count ? i : i % period), other);
#pragma unroll
        for (int j = 0; j < WIDE<T>; j++) values[j] += other[j];
    }
#pragma unroll
    for (int j = 0; j < WIDE<T>; j++) values[j] = activate(values[j], function);
    store_wide(y + i, values);
}

// y[r][i] = silu(x[r][i]) * x[r][width + i].
template <typename T>
__device__ __forceinline__ void swiglu_body(const T* x, T* y, uint64_t count, int width) {
    const uint64_t i = (uint64_t(blockIdx.x) * blockDim.x + threadIdx.x) * WIDE<T>;
    if (i >= count) return;
    const uint64_t row = i / width, column = i % width;
    float gate[WIDE<T>], up[WIDE<T>];
    load_wide(x + row * 2 * width + column, gate);
    load_wide(x + row * 2 * width + width + column, up);
#pragma unroll
    for (int j = 0; j < WIDE<T>; j++) gate[j] = silu(gate[j]) * up[j];
    store_wide(y + i, gate);
}

// Cuts [batch, side, side, width] into windows [batch * across^2, window, window, width] in reading
// order, padded with zeros; or, with `join`, joins them again and drops the padding. One block per
// patch of the windows.
template <typename T>
__device__ __forceinline__ void window_body(
    const T* from, T* to, int side, int window, int width, bool join) {
    const int across = (side + window - 1) / window;
    int patch = blockIdx.x;
    const int x_in = patch % window, y_in = patch / window % window;
    const int index = patch / (window * window);
    const int x = index % across * window + x_in, y = index / across % across * window + y_in;
    const size_t whole = (size_t(index / (across * across)) * side + y) * side + x;
    const bool inside = x < side && y < side;
    if (join && !inside) return;
    const T* source = from + (join ? size_t(patch) : whole) * width;
    T* target = to + (join ? whole : size_t(patch)) * width;
    for (int i = threadIdx.x * WIDE<T>; i < width; i += blockDim.x * WIDE<T>) {
        *reinterpret_cast<uint4*>(target + i) =
            inside ? *reinterpret_cast<const uint4*>(source + i) : make_uint4(0, 0, 0, 0);
    }
}

#define KERNELS(T, NAME)                                                                    \
    extern "C" __global__ void synthesise_##NAME(                                           \
        T* out, uint64_t count, uint64_t seed, float mean, float scale) {                   \
        synthesise_body<T>(out, count, seed, mean, scale);                                  \
    }                                                                                       \
    extern "C" __global__ void embed_##NAME(                                                \
        const uint32_t* tokens, const T* table, T* out, int width) {                        \
        embed_body<T>(tokens, table, out, width);                                           \
    }                                                                                       \
    extern "C" __global__ void bias_##NAME(                                                 \
        const T* x, const T* bias, const T* residual, T* y, uint64_t count,                 \
        uint64_t period, int width, int function) {                                         \
        bias_body<T>(x, bias, residual, y, count, period, width, function);                 \
    }                                                                                       \
    extern "C" __global__ void swiglu_##NAME(const T* x, T* y, uint64_t count, int width) { \
        swiglu_body<T>(x, y, count, width);                                                 \
    }                                                                                       \
    extern "C" __global__ void window_partition_##NAME(                                     \
        const T* from, T* to, int side, int window, int width) {                            \
        window_body<T>(from, to, side, window, width, false);                               \
    }                                                                                       \
    extern "C" __global__ void window_join_##NAME(                                          \
        const T* from, T* to, int side, int window, int width) {                            \
        window_body<T>(from, to, side, window, width, true);                                \
    }
FOR_EACH_TYPE(KERNELS)
