// Shared by the kernels of attention of many queries: arguments, tiles in shared memory, results.
#pragma once
#include "mma.cuh"

// Strides of a matrix of attention: elements between batches, heads and rows.
struct Strides {
    int64_t batch, head, row;
};

struct AttentionArgs {
    const void *queries, *keys, *values;
    void* out;
    Strides q, k, v, o;
    // On a grid: vectors of the offsets between rows and between columns, [2 side - 1, dim].
    const void *rows, *columns;
    int heads, group, queries_count, keys_count;
    float scale;
    int unused;
};

// Queries of a block.
constexpr int TILE = 64;
// Exponents are to the base of two.
constexpr float LOG2_E = 1.44269504f;

// Copies COUNT rows from row `first` on, zeros past row `count`, by `threads` threads.
template <typename T, int DIM, int COUNT>
__device__ __forceinline__ void load_rows(
    uint32_t to, const T* from, int64_t row_stride, int first, int count, int thread, int threads) {
    constexpr int CHUNKS = DIM / 8;
    for (int i = thread; i < COUNT * CHUNKS; i += threads) {
        const int row = i / CHUNKS, chunk = i % CHUNKS;
        const bool inside = first + row < count;
        copy_async(
            to + swizzled<CHUNKS>(row, chunk),
            from + int64_t(inside ? first + row : 0) * row_stride + chunk * 8, inside);
    }
}

// Stores a thread's part of the sixteen queries of its warp: `row` and the one eight further.
template <typename T, int DIM>
__device__ __forceinline__ void store_attention(
    const AttentionArgs& a, int batch, int head, int row, const float (&out)[DIM / 8][4],
    const float (&sums)[2]) {
    T* to = static_cast<T*>(a.out) + batch * a.o.batch + head * a.o.head + threadIdx.x % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++, row += 8) {
        float sum = sums[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (row >= a.queries_count) continue;
        const float by = 1.f / sum;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            *reinterpret_cast<uint32_t*>(to + row * a.o.row + n * 8) =
                pack<T>(out[n][2 * half] * by, out[n][2 * half + 1] * by);
        }
    }
}
