// Mixture of experts without the host: router, sorting of tokens by expert, grouped products,
// combination.
//
// `slots` is the number of experts of a token: its chosen ones, then the shared ones, which every
// token uses with weight one.
#include "mma.cuh"

// Softmax over the router's logits of TOKENS tokens per block, the largest `top_k` and their
// weights, all in float. ids and weights are [tokens, slots]; log is [capacity, top_k], written
// from row *position. Of equal probabilities the lower expert is chosen.
template <typename T, int TOKENS>
__device__ __forceinline__ void route_body(
    const T* x, const T* w, const uint32_t* position, uint32_t* ids, float* weights, uint32_t* log,
    int tokens, int hidden, int experts, int top_k, int slots, int capacity, bool normalise) {
    extern __shared__ __align__(128) uint8_t shared[];
    T* inputs = reinterpret_cast<T*>(shared);
    float* logits = reinterpret_cast<float*>(shared + size_t(TOKENS) * hidden * sizeof(T));
    const int first = blockIdx.x * TOKENS, count = min(TOKENS, tokens - first);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    // Prefetches each lane's first weights while the inputs are copied.
    constexpr int AHEAD = TOKENS == 1 ? 5 : 1;
    uint4 ahead[2][AHEAD];
#pragma unroll
    for (int u = 0; u < 2; u++) {
#pragma unroll
        for (int d = 0; d < AHEAD; d++) {
            const int expert = warp + u * warps, i = (d * 32 + lane) * WIDE<T>;
            if (expert < experts && i < hidden)
                ahead[u][d] = *reinterpret_cast<const uint4*>(w + size_t(expert) * hidden + i);
        }
    }
    for (int i = threadIdx.x * WIDE<T>; i < TOKENS * hidden; i += blockDim.x * WIDE<T>) {
        const uint4 raw = i < count * hidden
                              ? *reinterpret_cast<const uint4*>(x + size_t(first) * hidden + i)
                              : make_uint4(0, 0, 0, 0);
        *reinterpret_cast<uint4*>(inputs + i) = raw;
    }
    __syncthreads();
    auto logit = [&](int expert, const uint4* first) {
        float sums[TOKENS] = {};
        auto add = [&](uint4 raw, int i) {
            float by[WIDE<T>];
            unpack<T>(raw, by);
#pragma unroll
            for (int t = 0; t < TOKENS; t++) {
                float values[WIDE<T>];
                load_wide(inputs + t * hidden + i, values);
#pragma unroll
                for (int j = 0; j < WIDE<T>; j++) sums[t] += by[j] * values[j];
            }
        };
        int i = lane * WIDE<T>;
        if (first) {
#pragma unroll
            for (int d = 0; d < AHEAD; d++, i += 32 * WIDE<T>) {
                if (i < hidden) add(first[d], i);
            }
        }
#pragma unroll 4
        for (; i < hidden; i += 32 * WIDE<T>)
            add(*reinterpret_cast<const uint4*>(w + size_t(expert) * hidden + i), i);
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            const float sum = warp_sum(sums[t]);
            if (lane == 0) logits[t * experts + expert] = sum;
        }
    };
#pragma unroll
    for (int u = 0; u < 2; u++) {
        if (warp + u * warps < experts) logit(warp + u * warps, ahead[u]);
    }
    for (int expert = warp + 2 * warps; expert < experts; expert += warps) logit(expert, nullptr);
    __syncthreads();
    if (warp >= count) return;
    float* mine = logits + warp * experts;
    float largest = -INFINITY, sum = 0.f;
    for (int e = lane; e < experts; e += 32) largest = fmaxf(largest, mine[e]);
    largest = warp_max(largest);
    for (int e = lane; e < experts; e += 32) sum += __expf(mine[e] - largest);
    sum = warp_sum(sum);
    const int token = first + warp, place = *position + token;
    float chosen = 0.f, mine_weight = 0.f;
    for (int k = 0; k < top_k; k++) {
        float best = -INFINITY;
        int index = experts;
        for (int e = lane; e < experts; e += 32) {
            if (mine[e] > best) best = mine[e], index = e;
        }
#if __CUDA_ARCH__ >= 800
        // A float's bits, mapped to the same order as integers, are reduced by one instruction;
        // then the lower expert of equal ones is chosen.
        const uint32_t bits = __float_as_uint(best),
                       ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
        const uint32_t largest_bits = __reduce_max_sync(0xffffffffu, ordered);
        index = __reduce_min_sync(0xffffffffu, ordered == largest_bits ? index : experts);
        best = __uint_as_float(
            largest_bits & 0x80000000u ? largest_bits & 0x7fffffffu : ~largest_bits);
#else
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
            const float other = __shfl_xor_sync(0xffffffffu, best, offset);
            const int other_index = __shfl_xor_sync(0xffffffffu, index, offset);
            if (other > best || (other == best && other_index < index))
                best = other, index = other_index;
        }
#endif
        // NaN logits have no largest value: the last expert is chosen.
        index = min(index, experts - 1);
        const float weight = __expf(best - largest) / sum;
        chosen += weight;
        if (lane == k) mine_weight = weight;
        if (lane == 0) {
            mine[index] = -INFINITY;
            ids[token * slots + k] = index;
            if (place < capacity) log[size_t(place) * top_k + k] = index;
        }
        __syncwarp();
    }
    if (lane < top_k)
        weights[token * slots + lane] = normalise ? mine_weight / chosen : mine_weight;
    if (lane >= top_k && lane < slots) {
        ids[token * slots + lane] = experts + lane - top_k;
        weights[token * slots + lane] = 1.f;
    }
}

// Sorts assignments by expert: the assignment of each row (`order`), the row of each assignment
// (`places`), and the tiles of TILE_ROWS rows: [expert, first row, rows] each, expert -1 past the
// last. One block; `assignments` is tokens * slots.
constexpr int TILE_ROWS = 64;
constexpr int MAX_EXPERTS = 1024;
extern "C" __global__ void __launch_bounds__(1024) sort_by_expert(
    const uint32_t* ids, uint32_t* order, uint32_t* places, int* tiles, int assignments,
    int experts, int max_tiles) {
    __shared__ int counts[MAX_EXPERTS], starts[MAX_EXPERTS];
    __shared__ int first_tile[MAX_EXPERTS];
    __shared__ int tile_count;
    for (int e = threadIdx.x; e < experts; e += blockDim.x) counts[e] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < assignments; i += blockDim.x)
        places[i] = atomicAdd(&counts[ids[i]], 1);
    __syncthreads();
    if (threadIdx.x < 32) {
        // A running sum by one warp, 32 experts at a time.
        int rows = 0, tile = 0;
        for (int base = 0; base < experts; base += 32) {
            const int e = base + threadIdx.x;
            const int count = e < experts ? counts[e] : 0,
                      needed = (count + TILE_ROWS - 1) / TILE_ROWS;
            int row_sum = count, tile_sum = needed;
#pragma unroll
            for (int offset = 1; offset < 32; offset *= 2) {
                const int more_rows = __shfl_up_sync(0xffffffffu, row_sum, offset),
                          more_tiles = __shfl_up_sync(0xffffffffu, tile_sum, offset);
                if (threadIdx.x >= offset) row_sum += more_rows, tile_sum += more_tiles;
            }
            if (e < experts)
                starts[e] = rows + row_sum - count, first_tile[e] = tile + tile_sum - needed;
            rows += __shfl_sync(0xffffffffu, row_sum, 31),
                tile += __shfl_sync(0xffffffffu, tile_sum, 31);
        }
        if (threadIdx.x == 0) tile_count = tile;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < assignments; i += blockDim.x) {
        const int row = starts[ids[i]] + places[i];
        places[i] = row;
        order[row] = i;
    }
    for (int e = threadIdx.x; e < experts; e += blockDim.x) {
        for (int done = 0, tile = first_tile[e]; done < counts[e]; done += TILE_ROWS, tile++) {
            tiles[3 * tile] = e, tiles[3 * tile + 1] = starts[e] + done,
                      tiles[3 * tile + 2] = min(TILE_ROWS, counts[e] - done);
        }
    }
    for (int tile = tile_count + threadIdx.x; tile < max_tiles; tile += blockDim.x)
        tiles[3 * tile] = -1;
}

// Rows of one expert times its weights, for the tile of rows blockIdx.y and the tile of columns
// blockIdx.x. UP: y[row][i] = silu(gate_i . x) * (up_i . x), x the row's token, weights [experts, 2
// * n, k], gates before ups; 64 columns per block. Otherwise y[row][i] = w_i . x[row], weights
// [experts, n, k]; 128 columns per block.
template <typename T, bool UP>
__device__ __forceinline__ void grouped_body(
    const T* x, const T* w, const uint32_t* order, const int* tiles, T* y, int n, int k,
    int slots) {
    constexpr int DEEP = 64, STAGES = 3, CHUNKS = DEEP / 8, A_BYTES = TILE_ROWS * DEEP * 2,
                  B_BYTES = 128 * DEEP * 2;
    extern __shared__ __align__(128) uint8_t shared[];
    const int expert = tiles[3 * blockIdx.y];
    if (expert < 0) return;
    const int first_row = tiles[3 * blockIdx.y + 1], rows = tiles[3 * blockIdx.y + 2];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warp_row = warp / 2 * 32,
              warp_column = warp % 2;
    const uint32_t base = shared_address(shared);
    const int first_column = blockIdx.x * (UP ? 64 : 128);
    const T* weights = w + size_t(expert) * (UP ? 2 : 1) * n * k;

    // Each thread copies the same rows in every step: their addresses are computed once.
    const T* a_from[4];
    bool a_inside[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = threadIdx.x / CHUNKS + i * 16;
        a_inside[i] = row < rows;
        const int at = first_row + (a_inside[i] ? row : 0);
        a_from[i] = x + size_t(UP ? order[at] / slots : at) * k + threadIdx.x % CHUNKS * 8;
    }
    const T* b_from[8];
    bool b_inside[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int row = threadIdx.x / CHUNKS + i * 16;
        const int column = first_column + (UP ? row % 64 : row);
        b_inside[i] = column < n;
        b_from[i] = weights + size_t((b_inside[i] ? column : 0) + (UP && row >= 64 ? n : 0)) * k +
                    threadIdx.x % CHUNKS * 8;
    }
    const int steps = (k + DEEP - 1) / DEEP;
    auto load = [&](int step) {
        const uint32_t a_tile = base + step % STAGES * (A_BYTES + B_BYTES),
                       b_tile = a_tile + A_BYTES;
        const bool deep = step * DEEP + threadIdx.x % CHUNKS * 8 < k;
        const int offset = deep ? step * DEEP : 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            copy_async(
                a_tile + swizzled<CHUNKS>(threadIdx.x / CHUNKS + i * 16, threadIdx.x % CHUNKS),
                a_from[i] + offset, deep && a_inside[i]);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            copy_async(
                b_tile + swizzled<CHUNKS>(threadIdx.x / CHUNKS + i * 16, threadIdx.x % CHUNKS),
                b_from[i] + offset, deep && b_inside[i]);
        }
    };

    float sums[2][8][4] = {};
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < steps) load(s);
        copy_commit();
    }
    for (int step = 0; step < steps; step++) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        if (step + STAGES - 1 < steps) load(step + STAGES - 1);
        copy_commit();
        const uint32_t a_tile = base + step % STAGES * (A_BYTES + B_BYTES),
                       b_tile = a_tile + A_BYTES;
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

#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = warp_row + m * 16 + lane / 4 + half * 8;
            if (row >= rows) continue;
            T* to = y + size_t(first_row + row) * n;
#pragma unroll
            for (int c = 0; c < (UP ? 4 : 8); c++) {
                const int column =
                    first_column + warp_column * (UP ? 32 : 64) + c * 8 + lane % 4 * 2;
                if (column >= n) continue;
                float lower = sums[m][c][2 * half], upper = sums[m][c][2 * half + 1];
                if (UP)
                    lower = silu(lower) * sums[m][c + 4][2 * half],
                    upper = silu(upper) * sums[m][c + 4][2 * half + 1];
                *reinterpret_cast<uint32_t*>(to + column) = pack<T>(lower, upper);
            }
        }
    }
}

// y[token] = sum over slots, in order, of weights[token][slot] * outputs[places[token][slot]]. One
// block per token.
template <typename T>
__device__ __forceinline__ void combine_body(
    const T* outputs, const uint32_t* places, const float* weights, T* y, int width, int slots) {
    const int token = blockIdx.x;
    for (int i = threadIdx.x * WIDE<T>; i < width; i += blockDim.x * WIDE<T>) {
        float sums[WIDE<T>] = {};
        for (int s = 0; s < slots; s++) {
            float values[WIDE<T>];
            load_wide(outputs + size_t(places[token * slots + s]) * width + i, values);
            const float weight = weights[token * slots + s];
#pragma unroll
            for (int j = 0; j < WIDE<T>; j++) sums[j] += weight * values[j];
        }
        store_wide(y + size_t(token) * width + i, sums);
    }
}

#define ROUTE(T, NAME, TOKENS)                                                                  \
    extern "C" __global__ void __launch_bounds__(1024) route_##TOKENS##_##NAME(                 \
        const T* x, const T* w, const uint32_t* position, uint32_t* ids, float* weights,        \
        uint32_t* log, int tokens, int hidden, int experts, int top_k, int slots, int capacity, \
        int normalise) {                                                                        \
        route_body<T, TOKENS>(                                                                  \
            x, w, position, ids, weights, log, tokens, hidden, experts, top_k, slots, capacity, \
            normalise);                                                                         \
    }
#define ANY(T, NAME)                                                                     \
    ROUTE(T, NAME, 1)                                                                    \
    ROUTE(T, NAME, 8)                                                                    \
    extern "C" __global__ void combine_##NAME(                                           \
        const T* outputs, const uint32_t* places, const float* weights, T* y, int width, \
        int slots) {                                                                     \
        combine_body<T>(outputs, places, weights, y, width, slots);                      \
    }
FOR_EACH_TYPE(ANY)

#define GROUPED(T, NAME)                                                                     \
    extern "C" __global__ void __launch_bounds__(128) grouped_up_##NAME(                     \
        const T* x, const T* w, const uint32_t* order, const int* tiles, T* y, int n, int k, \
        int slots) {                                                                         \
        grouped_body<T, true>(x, w, order, tiles, y, n, k, slots);                           \
    }                                                                                        \
    extern "C" __global__ void __launch_bounds__(128) grouped_down_##NAME(                   \
        const T* x, const T* w, const uint32_t* order, const int* tiles, T* y, int n, int k, \
        int slots) {                                                                         \
        grouped_body<T, false>(x, w, order, tiles, y, n, k, slots);                          \
    }
FOR_EACH_HALF(GROUPED)
