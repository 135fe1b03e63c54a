// Shared by all kernels: 16-byte accesses, conversions, reductions over a warp.
//
// T is __nv_bfloat16, __half or float; arithmetic is in float, and a value is rounded to T where an
// operator ends.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

using bf16 = __nv_bfloat16;
using f16 = __half;

// Elements of T in 16 bytes.
template <typename T>
constexpr int WIDE = 16 / sizeof(T);

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(f16 x) { return __half2float(x); }

template <typename T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
    return x;
}
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) {
    return __float2bfloat16(x);
}
template <>
__device__ __forceinline__ f16 from_float<f16>(float x) {
    return __float2half(x);
}

// Two neighbours as one register, the lower index in the lower half.
template <typename T>
__device__ __forceinline__ uint32_t pack(float lower, float upper);
template <>
__device__ __forceinline__ uint32_t pack<bf16>(float lower, float upper) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(lower, upper);
    return *reinterpret_cast<uint32_t*>(&pair);
}
template <>
__device__ __forceinline__ uint32_t pack<f16>(float lower, float upper) {
    __half2 pair = __floats2half2_rn(lower, upper);
    return *reinterpret_cast<uint32_t*>(&pair);
}

template <typename T>
__device__ __forceinline__ void unpack(uint4 raw, float (&out)[WIDE<T>]);
template <>
__device__ __forceinline__ void unpack<float>(uint4 raw, float (&out)[4]) {
    out[0] = __uint_as_float(raw.x), out[1] = __uint_as_float(raw.y);
    out[2] = __uint_as_float(raw.z), out[3] = __uint_as_float(raw.w);
}
template <>
__device__ __forceinline__ void unpack<bf16>(uint4 raw, float (&out)[8]) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[2 * i] = __uint_as_float(words[i] << 16);
        out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}
template <>
__device__ __forceinline__ void unpack<f16>(uint4 raw, float (&out)[8]) {
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&words[i]));
        out[2 * i] = pair.x, out[2 * i + 1] = pair.y;
    }
}

template <typename T>
__device__ __forceinline__ void load_wide(const T* from, float (&out)[WIDE<T>]) {
    unpack<T>(*reinterpret_cast<const uint4*>(from), out);
}

template <typename T>
__device__ __forceinline__ void store_wide(T* to, const float (&values)[WIDE<T>]) {
    T rounded[WIDE<T>];
#pragma unroll
    for (int i = 0; i < WIDE<T>; i++) rounded[i] = from_float<T>(values[i]);
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<uint4*>(rounded);
}

// Reads 16 bytes that are read once, such as weights, without allocating them in L1.
__device__ __forceinline__ uint4 load_streaming(const void* from) {
    uint4 raw;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(raw.x), "=r"(raw.y), "=r"(raw.z), "=r"(raw.w)
                 : "l"(from));
    return raw;
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

// Sum over a block of full warps, in every thread; `shared` has 32 floats.
__device__ __forceinline__ float block_sum(float x, float* shared) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    x = warp_sum(x);
    __syncthreads();
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    return warp_sum(lane < warps ? shared[lane] : 0.f);
}

__device__ __forceinline__ float silu(float x) { return x / (1.f + __expf(-x)); }

// Blocks of a cluster, which read and write each other's shared memory: from sm_90 on.
#if __CUDA_ARCH__ >= 900
#define CLUSTER(X, Y) __cluster_dims__(X, Y, 1)

__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
__device__ __forceinline__ int cluster_rank() {
    int rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ __forceinline__ uint32_t address_in_block(const void* shared, int rank) {
    uint32_t mine = static_cast<uint32_t>(__cvta_generic_to_shared(shared)), theirs;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(theirs) : "r"(mine), "r"(rank));
    return theirs;
}
__device__ __forceinline__ float load_from_block(const float* shared, int rank) {
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];"
                 : "=f"(value)
                 : "r"(address_in_block(shared, rank))
                 : "memory");
    return value;
}
__device__ __forceinline__ void store_in_block(float* shared, int rank, float value) {
    const uint32_t address = address_in_block(shared, rank);
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
#else
#define CLUSTER(X, Y)
#endif

// Rows of a tile of the experts' grouped products.
constexpr int TILE_ROWS = 128;

// Applies MACRO(type, suffix) to each type: a kernel's name ends in the suffix, as built by the
// launching side.
#define FOR_EACH_TYPE(MACRO) MACRO(bf16, bf16) MACRO(f16, f16) MACRO(float, f32)
#define FOR_EACH_HALF(MACRO) MACRO(bf16, bf16) MACRO(f16, f16)
