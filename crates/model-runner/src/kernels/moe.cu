// Mixture of experts without the host: router, sorting of tokens by expert, combination.
//
// `slots` is the number of experts of a token: its chosen ones, then the shared ones, which every
// token uses with weight one.
#include "mma.cuh"

// Softmax of one token's logits, by one warp, the largest `top_k` and their weights, in float. ids
// and weights are [tokens, slots]; log is [capacity, top_k], written from row *position. If
// probabilities are equal, the lower expert is chosen. Overwrites the logits.
struct Chosen {
    uint32_t* ids;
    float* weights;
    uint32_t* log;
    int experts, top_k, slots, capacity;
    bool normalise;
};

__device__ __forceinline__ void choose(float* mine, int token, int place, const Chosen& to) {
    const int lane = threadIdx.x % 32, experts = to.experts, top_k = to.top_k, slots = to.slots;
    float largest = -INFINITY, sum = 0.f;
    for (int e = lane; e < experts; e += 32) largest = fmaxf(largest, mine[e]);
    largest = warp_max(largest);
    for (int e = lane; e < experts; e += 32) sum += __expf(mine[e] - largest);
    sum = warp_sum(sum);
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
            to.ids[token * slots + k] = index;
            if (place < to.capacity) to.log[size_t(place) * top_k + k] = index;
        }
        __syncwarp();
    }
    if (lane < top_k)
        to.weights[token * slots + lane] = to.normalise ? mine_weight / chosen : mine_weight;
    if (lane >= top_k && lane < slots) {
        to.ids[token * slots + lane] = experts + lane - top_k;
        to.weights[token * slots + lane] = 1.f;
    }
}

// The experts of one token, which are shared among the blocks of a cluster; the first block
// chooses.
template <typename T>
__device__ __forceinline__ void route_one_body(
    const T* x, const T* w, const uint32_t* position, const Chosen& to, int hidden) {
    extern __shared__ __align__(128) uint8_t shared[];
    T* inputs = reinterpret_cast<T*>(shared);
    float* logits = reinterpret_cast<float*>(shared + size_t(hidden) * sizeof(T));
    const int experts = to.experts, lane = threadIdx.x % 32, warps = gridDim.x * blockDim.x / 32,
              warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
#if __CUDA_ARCH__ >= 900
    cluster_arrive();
#endif
    // Prefetches each lane's first weights while the inputs are copied.
    constexpr int AHEAD = 5;
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
    for (int i = threadIdx.x * WIDE<T>; i < hidden; i += blockDim.x * WIDE<T>)
        *reinterpret_cast<uint4*>(inputs + i) = *reinterpret_cast<const uint4*>(x + i);
    __syncthreads();
#if __CUDA_ARCH__ >= 900
    // The first block has started: its memory may be written.
    cluster_wait();
#endif
    auto logit = [&](int expert, const uint4* first) {
        float sum = 0.f;
        auto add = [&](uint4 raw, int i) {
            float by[WIDE<T>], values[WIDE<T>];
            unpack<T>(raw, by);
            load_wide(inputs + i, values);
#pragma unroll
            for (int j = 0; j < WIDE<T>; j++) sum += by[j] * values[j];
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
        sum = warp_sum(sum);
#if __CUDA_ARCH__ >= 900
        if (lane == 0) store_in_block(logits + expert, 0, sum);
#else
        if (lane == 0) logits[expert] = sum;
#endif
    };
#pragma unroll
    for (int u = 0; u < 2; u++) {
        if (warp + u * warps < experts) logit(warp + u * warps, ahead[u]);
    }
    for (int expert = warp + 2 * warps; expert < experts; expert += warps) logit(expert, nullptr);
#if __CUDA_ARCH__ >= 900
    cluster_arrive();
    cluster_wait();
#endif
    __syncthreads();
    if (warp == 0) choose(logits, 0, *position, to);
}

// The experts of ROUTED tokens per block. Each warp multiplies every sixteenth piece of 32 values
// of all tokens with the values of 64 experts, and the warps' sums are added in order. A lane reads
// eight neighbours at once, four for each of the two products of a piece: k is permuted alike in
// both operands.
constexpr int ROUTED = 16, ROUTE_WARPS = 16, ROUTE_COLUMNS = 64, ROUTE_STRIDE = ROUTE_COLUMNS + 8;

template <typename T>
__device__ __forceinline__ void route_many_body(
    const T* x, const T* w, const uint32_t* position, const Chosen& to, int tokens, int hidden) {
    extern __shared__ __align__(128) uint8_t shared[];
    float* partial = reinterpret_cast<float*>(shared);
    float* logits = partial + ROUTE_WARPS * ROUTED * ROUTE_STRIDE;
    const int experts = to.experts, first = blockIdx.x * ROUTED, warp = threadIdx.x / 32,
              lane = threadIdx.x % 32, row = lane / 4;
    auto piece = [&](const T* from, int at, int count, int k) {
        return at < count && k < hidden
                   ? *reinterpret_cast<const uint4*>(from + size_t(at) * hidden + k)
                   : make_uint4(0, 0, 0, 0);
    };
    for (int column = 0; column < experts; column += ROUTE_COLUMNS) {
        float sums[ROUTE_COLUMNS / 8][4] = {};
#pragma unroll 2
        for (int base = warp * 32; base < hidden; base += ROUTE_WARPS * 32) {
            const int k = base + lane % 4 * 8;
            const uint4 lower = piece(x, first + row, tokens, k),
                        upper = piece(x, first + row + 8, tokens, k);
            const uint32_t near[4] = {lower.x, upper.x, lower.y, upper.y},
                           far[4] = {lower.z, upper.z, lower.w, upper.w};
            uint4 by[ROUTE_COLUMNS / 8];
#pragma unroll
            for (int n = 0; n < ROUTE_COLUMNS / 8; n++)
                by[n] = piece(w, column + n * 8 + row, experts, k);
#pragma unroll
            for (int n = 0; n < ROUTE_COLUMNS / 8; n++) {
                multiply<T>(sums[n], near, by[n].x, by[n].y);
                multiply<T>(sums[n], far, by[n].z, by[n].w);
            }
        }
        float* mine = partial + (warp * ROUTED + row) * ROUTE_STRIDE + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < ROUTE_COLUMNS / 8; n++) {
            *reinterpret_cast<float2*>(mine + n * 8) = make_float2(sums[n][0], sums[n][1]);
            *reinterpret_cast<float2*>(mine + 8 * ROUTE_STRIDE + n * 8) =
                make_float2(sums[n][2], sums[n][3]);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < ROUTED * ROUTE_COLUMNS; i += blockDim.x) {
            const int token = i / ROUTE_COLUMNS, expert = column + i % ROUTE_COLUMNS;
            float sum = 0.f;
#pragma unroll
            for (int from = 0; from < ROUTE_WARPS; from++)
                sum += partial[(from * ROUTED + token) * ROUTE_STRIDE + i % ROUTE_COLUMNS];
            if (expert < experts) logits[token * experts + expert] = sum;
        }
        __syncthreads();
    }
    for (int at = warp; at < ROUTED && first + at < tokens; at += ROUTE_WARPS)
        choose(logits + at * experts, first + at, *position + first + at, to);
}

// Sorts assignments by expert: the assignment of each row (`order`), the row of each assignment
// (`places`), and the tiles of TILE_ROWS rows: [expert, first row, rows] each, expert -1 past the
// last. One block; `assignments` is tokens * slots. If shared memory has room, rows are staged
// there, because stores to them in the order of assignments are scattered.
constexpr int MAX_EXPERTS = 1024;
extern "C" __global__ void __launch_bounds__(1024) sort_by_expert(
    const uint32_t* __restrict__ ids, uint32_t* __restrict__ order, uint32_t* __restrict__ places,
    int* __restrict__ tiles, int assignments, int experts, int max_tiles, int is_staged) {
    extern __shared__ uint32_t staged[];
    __shared__ int counts[MAX_EXPERTS], starts[MAX_EXPERTS];
    __shared__ int first_tile[MAX_EXPERTS];
    __shared__ int tile_count;
    for (int e = threadIdx.x; e < experts; e += blockDim.x) counts[e] = 0;
    __syncthreads();
    // Several assignments of a thread at a time, for their reads to overlap.
    constexpr int AT_ONCE = 8;
    auto each = [&](auto take) {
        for (int base = threadIdx.x; base < assignments; base += AT_ONCE * blockDim.x) {
            uint32_t expert[AT_ONCE];
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++) {
                const int i = base + u * blockDim.x;
                expert[u] = i < assignments ? ids[i] : 0;
            }
            take(base, expert);
        }
    };
    each([&](int base, const uint32_t (&expert)[AT_ONCE]) {
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            const int i = base + u * blockDim.x;
            if (i < assignments) places[i] = atomicAdd(&counts[expert[u]], 1);
        }
    });
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
    each([&](int base, const uint32_t (&expert)[AT_ONCE]) {
        int rows[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            const int i = base + u * blockDim.x;
            rows[u] = i < assignments ? starts[expert[u]] + places[i] : 0;
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            const int i = base + u * blockDim.x;
            if (i < assignments) places[i] = rows[u], (is_staged ? staged : order)[rows[u]] = i;
        }
    });
    for (int e = threadIdx.x; e < experts; e += blockDim.x) {
        for (int done = 0, tile = first_tile[e]; done < counts[e]; done += TILE_ROWS, tile++) {
            tiles[3 * tile] = e, tiles[3 * tile + 1] = starts[e] + done,
                      tiles[3 * tile + 2] = min(TILE_ROWS, counts[e] - done);
        }
    }
    for (int tile = tile_count + threadIdx.x; tile < max_tiles; tile += blockDim.x)
        tiles[3 * tile] = -1;
    if (!is_staged) return;
    __syncthreads();
    for (int row = threadIdx.x; row < assignments; row += blockDim.x) order[row] = staged[row];
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

#define ONE(T, NAME)                                                                            \
    extern "C" __global__ void CLUSTER(8, 1) __launch_bounds__(1024) route_one_##NAME(          \
        const T* x, const T* w, const uint32_t* position, uint32_t* ids, float* weights,        \
        uint32_t* log, int tokens, int hidden, int experts, int top_k, int slots, int capacity, \
        int normalise) {                                                                        \
        const Chosen to = {ids, weights, log, experts, top_k, slots, capacity, normalise != 0}; \
        route_one_body<T>(x, w, position, to, hidden);                                          \
    }                                                                                           \
    extern "C" __global__ void combine_##NAME(                                                  \
        const T* outputs, const uint32_t* places, const float* weights, T* y, int width,        \
        int slots) {                                                                            \
        combine_body<T>(outputs, places, weights, y, width, slots);                             \
    }
FOR_EACH_TYPE(ONE)

#define MANY(T, NAME)                                                                           \
    extern "C" __global__ void __launch_bounds__(ROUTE_WARPS * 32) route_many_##NAME(           \
        const T* x, const T* w, const uint32_t* position, uint32_t* ids, float* weights,        \
        uint32_t* log, int tokens, int hidden, int experts, int top_k, int slots, int capacity, \
        int normalise) {                                                                        \
        const Chosen to = {ids, weights, log, experts, top_k, slots, capacity, normalise != 0}; \
        route_many_body<T>(x, w, position, to, tokens, hidden);                                 \
    }
FOR_EACH_HALF(MANY)
