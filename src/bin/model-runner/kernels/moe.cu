// Mixture of experts without the host: router, sorting of tokens by expert, combination.
//
// `slots` is the number of experts of a token: its chosen ones, then the shared ones, which every
// token uses with weight one.
#include "common.cuh"

// Softmax over the router's logits of TOKENS tokens per block, the largest `top_k` and their
// weights, all in float. The experts of a single token are shared among the blocks of a cluster, of
// which the first chooses. ids and weights are [tokens, slots]; log is [capacity, top_k], written
// from row *position. Of equal probabilities the lower expert is chosen.
template <typename T, int TOKENS>
__device__ __forceinline__ void route_body(
    const T* x, const T* w, const uint32_t* position, uint32_t* ids, float* weights, uint32_t* log,
    int tokens, int hidden, int experts, int top_k, int slots, int capacity, bool normalise) {
    extern __shared__ __align__(128) uint8_t shared[];
    T* inputs = reinterpret_cast<T*>(shared);
    float* logits = reinterpret_cast<float*>(shared + size_t(TOKENS) * hidden * sizeof(T));
    // A single token's block is one of a cluster.
    const int block = TOKENS == 1 ? blockIdx.x : 0, blocks = TOKENS == 1 ? gridDim.x : 1;
    const int first = TOKENS == 1 ? 0 : blockIdx.x * TOKENS, count = min(TOKENS, tokens - first);
    const int lane = threadIdx.x % 32, warps = blocks * blockDim.x / 32,
              warp = block * blockDim.x / 32 + threadIdx.x / 32;
#if __CUDA_ARCH__ >= 900
    if (TOKENS == 1) cluster_arrive();
#endif
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
#if __CUDA_ARCH__ >= 900
    // The first block has started: its memory may be written.
    if (TOKENS == 1) cluster_wait();
#endif
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
#if __CUDA_ARCH__ >= 900
            if (TOKENS == 1) {
                if (lane == 0) store_in_block(logits + expert, 0, sum);
                continue;
            }
#endif
            if (lane == 0) logits[t * experts + expert] = sum;
        }
    };
#pragma unroll
    for (int u = 0; u < 2; u++) {
        if (warp + u * warps < experts) logit(warp + u * warps, ahead[u]);
    }
    for (int expert = warp + 2 * warps; expert < experts; expert += warps) logit(expert, nullptr);
#if __CUDA_ARCH__ >= 900
    if (TOKENS == 1) {
        cluster_arrive();
        cluster_wait();
    }
#endif
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

#define ROUTE(T, NAME, TOKENS, THREADS, BLOCKS)                                                 \
    extern "C" __global__ void BLOCKS __launch_bounds__(THREADS) route_##TOKENS##_##NAME(       \
        const T* x, const T* w, const uint32_t* position, uint32_t* ids, float* weights,        \
        uint32_t* log, int tokens, int hidden, int experts, int top_k, int slots, int capacity, \
        int normalise) {                                                                        \
        route_body<T, TOKENS>(                                                                  \
            x, w, position, ids, weights, log, tokens, hidden, experts, top_k, slots, capacity, \
            normalise);                                                                         \
    }
#define ANY(T, NAME)                                                                     \
    ROUTE(T, NAME, 1, 1024, CLUSTER(8, 1))                                               \
    ROUTE(T, NAME, 8, 512, )                                                             \
    extern "C" __global__ void combine_##NAME(                                           \
        const T* outputs, const uint32_t* places, const float* weights, T* y, int width, \
        int slots) {                                                                     \
        combine_body<T>(outputs, places, weights, y, width, slots);                      \
    }
FOR_EACH_TYPE(ANY)
