// Products of the tokens of each expert with its weights.
#include "wgmma.cuh"

// Two of them have 64 rows each: warps or groups past the last row only copy.
constexpr int THREADS = 256, COLUMNS = 128, DEEP = 64, STAGES = 3, CHUNKS = DEEP / 8,
              A_BYTES = TILE_ROWS * DEEP * 2, B_BYTES = COLUMNS * DEEP * 2;

// A block's product: rows of tokens times columns, which with UP are 64 gates and their 64 ups.
// `store` calls `to(row, column, lower, upper)` for each pair of results: with UP, silu(gate) * up.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
template <typename T, bool UP>
struct Product {
    // Each group of four warps has 64 rows and all columns. The shuffle makes the group the same in
    // every lane for the compiler, too, which otherwise waits for each product.
    const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0), lane = threadIdx.x % 32,
              row = group * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
    float sums[16][4] = {};

    __device__ __forceinline__ bool idle(int rows) const { return group * 64 >= rows; }

    __device__ __forceinline__ void start(uint32_t a_tile, uint32_t b_tile) {
        group_fence();
#pragma unroll
        for (int d = 0; d < DEEP / 16; d++) {
            group_multiply<T>(
                sums, group_operand(a_tile + group * 64 * DEEP * 2 + d * 32),
                group_operand(b_tile + d * 32));
        }
        group_commit();
    }

    __device__ __forceinline__ void finish() { group_wait(); }

    template <typename Store>
    __device__ __forceinline__ void store(Store to) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int c = 0; c < (UP ? 8 : 16); c++) {
                float lower = sums[c][2 * half], upper = sums[c][2 * half + 1];
                if (UP)
                    lower = silu(lower) * sums[c + 8][2 * half],
                    upper = silu(upper) * sums[c + 8][2 * half + 1];
                to(row + half * 8, c * 8 + lane % 4 * 2, lower, upper);
            }
        }
    }
};
#else
template <typename T, bool UP>
struct Product {
    // Each warp has 32 rows and half of the columns.
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warp_row = warp / 2 * 32,
              warp_column = warp % 2;
    float sums[2][8][4] = {};

    __device__ __forceinline__ bool idle(int rows) const { return warp_row >= rows; }

    __device__ __forceinline__ void start(uint32_t a_tile, uint32_t b_tile) {
#pragma unroll
        for (int d = 0; d < DEEP / 16; d++) {
            uint32_t a[2][4];
#pragma unroll
            for (int m = 0; m < 2; m++) {
                load_matrices(
                    a[m],
                    a_tile + swizzled<CHUNKS>(warp_row + m * 16 + lane % 16, 2 * d + lane / 16));
            }
#pragma unroll
            for (int p = 0; p < 4; p++) {
                // UP: two pairs of gates, then the two pairs of ups of the same columns.
                const int row =
                    UP ? p / 2 * 64 + warp_column * 32 + p % 2 * 16 : warp_column * 64 + p * 16;
                uint32_t b[4];
                load_matrices(
                    b, b_tile +
                           swizzled<CHUNKS>(row + lane % 8 + lane / 16 * 8, 2 * d + lane / 8 % 2));
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    multiply<T>(sums[m][2 * p], a[m], b[0], b[1]);
                    multiply<T>(sums[m][2 * p + 1], a[m], b[2], b[3]);
                }
            }
        }
    }

    __device__ __forceinline__ void finish() {}

    template <typename Store>
    __device__ __forceinline__ void store(Store to) const {
#pragma unroll
        for (int m = 0; m < 2; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
#pragma unroll
                for (int c = 0; c < (UP ? 4 : 8); c++) {
                    float lower = sums[m][c][2 * half], upper = sums[m][c][2 * half + 1];
                    if (UP)
                        lower = silu(lower) * sums[m][c + 4][2 * half],
                        upper = silu(upper) * sums[m][c + 4][2 * half + 1];
                    to(warp_row + m * 16 + lane / 4 + half * 8,
                       warp_column * (UP ? 32 : 64) + c * 8 + lane % 4 * 2, lower, upper);
                }
            }
        }
    }
};
#endif

// Rows of one expert times its weights, for the tile of rows blockIdx.y and the tile of columns
// blockIdx.x. UP: y[row][i] = silu(gate_i . x) * (up_i . x), x the row's token, weights [experts, 2
// * n, k], gates before ups; 64 columns per block. Otherwise y[row][i] = w_i . x[row], weights
// [experts, n, k]; 128 columns per block.
template <typename T, bool UP>
__device__ __forceinline__ void grouped_body(
    const T* x, const T* w, const uint32_t* order, const int* tiles, T* y, int n, int k,
    int slots) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const int expert = tiles[3 * blockIdx.y];
    if (expert < 0) return;
    const int first_row = tiles[3 * blockIdx.y + 1], rows = tiles[3 * blockIdx.y + 2];
    const uint32_t base = shared_address(shared);
    const int first_column = blockIdx.x * (UP ? COLUMNS / 2 : COLUMNS);
    const T* weights = w + size_t(expert) * (UP ? 2 : 1) * n * k;

    // Each thread copies the same rows in every step: their addresses are computed once.
    constexpr int COPIES = TILE_ROWS * CHUNKS / THREADS, APART = THREADS / CHUNKS;
    static_assert(TILE_ROWS == COLUMNS, "as many rows as columns are copied");
    const T *a_from[COPIES], *b_from[COPIES];
    bool a_inside[COPIES], b_inside[COPIES];
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        const int row = threadIdx.x / CHUNKS + i * APART, deep = threadIdx.x % CHUNKS * 8;
        a_inside[i] = row < rows;
        const int at = first_row + (a_inside[i] ? row : 0);
        a_from[i] = x + size_t(UP ? order[at] / slots : at) * k + deep;
        const int column = first_column + (UP ? row % 64 : row);
        b_inside[i] = column < n;
        b_from[i] =
            weights + size_t((b_inside[i] ? column : 0) + (UP && row >= 64 ? n : 0)) * k + deep;
    }
    const int steps = (k + DEEP - 1) / DEEP;
    auto load = [&](int step) {
        const uint32_t a_tile = base + step % STAGES * (A_BYTES + B_BYTES),
                       b_tile = a_tile + A_BYTES;
        const bool deep = step * DEEP + threadIdx.x % CHUNKS * 8 < k;
        const int offset = deep ? step * DEEP : 0;
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            const uint32_t at =
                swizzled<CHUNKS>(threadIdx.x / CHUNKS + i * APART, threadIdx.x % CHUNKS);
            copy_async(a_tile + at, a_from[i] + offset, deep && a_inside[i]);
            copy_async(b_tile + at, b_from[i] + offset, deep && b_inside[i]);
        }
    };

    Product<T, UP> product;
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < steps) load(s);
        copy_commit();
    }
    for (int step = 0; step < steps; step++) {
        copy_wait<STAGES - 2>();
        group_fence_copies();
        __syncthreads();
        const uint32_t a_tile = base + step % STAGES * (A_BYTES + B_BYTES);
        const bool idle = product.idle(rows);
        if (!idle) product.start(a_tile, a_tile + A_BYTES);
        // The stage of the step before, which every thread has finished.
        if (step + STAGES - 1 < steps) load(step + STAGES - 1);
        copy_commit();
        if (!idle) product.finish();
    }
    product.store([&](int row, int column, float lower, float upper) {
        column += first_column;
        if (row < rows && column < n)
            *reinterpret_cast<uint32_t*>(y + size_t(first_row + row) * n + column) =
                pack<T>(lower, upper);
    });
}

#define GROUPED(T, NAME)                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) grouped_up_##NAME(              \
        const T* x, const T* w, const uint32_t* order, const int* tiles, T* y, int n, int k, \
        int slots) {                                                                         \
        grouped_body<T, true>(x, w, order, tiles, y, n, k, slots);                           \
    }                                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) grouped_down_##NAME(            \
        const T* x, const T* w, const uint32_t* order, const int* tiles, T* y, int n, int k, \
        int slots) {                                                                         \
        grouped_body<T, false>(x, w, order, tiles, y, n, k, slots);                          \
    }
FOR_EACH_HALF(GROUPED)
