// Attention of one token over the cache.
#include "common.cuh"

// Result of one part of the keys: the largest score and the sum of weights; weighted values follow.
struct Partial {
    float largest, sum;
};

constexpr int ONE_WARPS = 16;
// Parts of the keys: blocks of a cluster, or without clusters at most so many.
#if __CUDA_ARCH__ >= 900
constexpr int CLUSTER_PARTS = 8;
#else
constexpr int MAX_PARTS = 64;
#endif
// Keys, and values, that a group of lanes has in flight.
constexpr int AHEAD = 4;

// Attention of one token of each sequence, queries [sequences, heads, dim], to the keys and values
// in the cache [sequences, kv_heads, capacity, dim] up to and including the sequence's position.
// blockIdx.x is the head, blockIdx.y one of gridDim.y parts of the keys, blockIdx.z the sequence.
// The parts are a cluster, whose blocks each join some columns of all; without clusters the part
// that finishes last joins them. LANES lanes read a key, 16 bytes each.
template <typename T, int DIM>
__device__ __forceinline__ void attend_one_body(
    const T* queries, const T* keys, const T* values, const uint32_t* positions, T* out,
    float* partial, uint32_t* tickets, int kv_heads, int capacity, float scale) {
    constexpr int WARPS = ONE_WARPS, LANES = DIM / WIDE<T>, GROUPS = 32 / LANES,
                  ACROSS = WARPS * GROUPS;
    static_assert(LANES <= 32 && 32 % LANES == 0, "a key spans at most a warp");
    const int head = blockIdx.x, heads = gridDim.x, part = blockIdx.y, parts = gridDim.y;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32,
              group = warp * GROUPS + lane / LANES, column = lane % LANES * WIDE<T>;
    // The head among the heads of all sequences.
    const size_t own = size_t(blockIdx.z) * heads + head;
    const int length = positions[blockIdx.z] + 1, chunk = (length + parts - 1) / parts;
    const int start = part * chunk, end = min(length, start + chunk);
    const size_t base =
        (size_t(blockIdx.z) * kv_heads + head / (heads / kv_heads)) * capacity * DIM;

    float query[WIDE<T>], mixed[WIDE<T>] = {};
    load_wide(queries + own * DIM + column, query);
    float largest = -INFINITY, sum = 0.f;
    // Every lane of a warp takes part in every iteration: the shuffles need them all.
    for (int first = start; first < end; first += AHEAD * ACROSS) {
        uint4 key_raw[AHEAD], value_raw[AHEAD];
        bool inside[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            const int key = first + u * ACROSS + group;
            inside[u] = key < end;
            const size_t at = base + size_t(inside[u] ? key : start) * DIM + column;
            key_raw[u] = *reinterpret_cast<const uint4*>(keys + at);
            value_raw[u] = *reinterpret_cast<const uint4*>(values + at);
        }
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            float k[WIDE<T>], v[WIDE<T>], score = 0.f;
            unpack<T>(key_raw[u], k);
            unpack<T>(value_raw[u], v);
#pragma unroll
            for (int j = 0; j < WIDE<T>; j++) score += query[j] * k[j];
#pragma unroll
            for (int offset = LANES / 2; offset > 0; offset /= 2)
                score += __shfl_xor_sync(0xffffffffu, score, offset);
            if (inside[u]) {
                score *= scale;
                const float larger = fmaxf(largest, score), keep = __expf(largest - larger),
                            weight = __expf(score - larger);
                sum = sum * keep + weight;
#pragma unroll
                for (int j = 0; j < WIDE<T>; j++) mixed[j] = mixed[j] * keep + weight * v[j];
                largest = larger;
            }
        }
    }

    // Joins the groups of each warp, then the warps.
#pragma unroll
    for (int offset = LANES; offset < 32; offset *= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, largest, offset),
                    other_sum = __shfl_xor_sync(0xffffffffu, sum, offset),
                    larger = fmaxf(largest, other);
        const float keep = sum > 0.f ? __expf(largest - larger) : 0.f,
                    add = other_sum > 0.f ? __expf(other - larger) : 0.f;
        sum = sum * keep + other_sum * add;
#pragma unroll
        for (int j = 0; j < WIDE<T>; j++) {
            const float more = __shfl_xor_sync(0xffffffffu, mixed[j], offset);
            mixed[j] = mixed[j] * keep + more * add;
        }
        largest = larger;
    }
    __shared__ float shared_mixed[WARPS][DIM];
    __shared__ Partial shared_partial[WARPS];
    if (lane < LANES) {
#pragma unroll
        for (int j = 0; j < WIDE<T>; j++) shared_mixed[warp][column + j] = mixed[j];
        if (column == 0) shared_partial[warp] = {largest, sum};
    }
    __syncthreads();
    float top = -INFINITY, total = 0.f, value = 0.f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) top = fmaxf(top, shared_partial[w].largest);
    if (threadIdx.x < DIM) {
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float weight =
                shared_partial[w].sum > 0.f ? __expf(shared_partial[w].largest - top) : 0.f;
            value += weight * shared_mixed[w][threadIdx.x];
            total += weight * shared_partial[w].sum;
        }
    }
#if __CUDA_ARCH__ >= 900
    // The part's values, its largest score and its sum of weights.
    __shared__ float result[DIM + 2];
    if (threadIdx.x < DIM) result[threadIdx.x] = value;
    if (threadIdx.x == 0) result[DIM] = top, result[DIM + 1] = total;
    cluster_arrive();
    cluster_wait();
    constexpr int COLUMNS = DIM / CLUSTER_PARTS;
    if (threadIdx.x < COLUMNS) {
        const int i = part * COLUMNS + threadIdx.x;
        float tops[CLUSTER_PARTS], sums[CLUSTER_PARTS], values[CLUSTER_PARTS], best = -INFINITY;
#pragma unroll
        for (int p = 0; p < CLUSTER_PARTS; p++) {
            tops[p] = load_from_block(result + DIM, p);
            sums[p] = load_from_block(result + DIM + 1, p);
            values[p] = load_from_block(result + i, p);
            best = fmaxf(best, tops[p]);
        }
        float joined = 0.f, weights = 0.f;
#pragma unroll
        for (int p = 0; p < CLUSTER_PARTS; p++) {
            const float weight = sums[p] > 0.f ? __expf(tops[p] - best) : 0.f;
            joined += weight * values[p], weights += weight * sums[p];
        }
        out[own * DIM + i] = from_float<T>(joined / weights);
    }
    // No block ends while another reads its memory.
    cluster_arrive();
    cluster_wait();
#else
    __shared__ bool last;
    // partial: [sequences, heads, parts, DIM + 2]
    float* mine = partial + (own * parts + part) * (DIM + 2);
    if (threadIdx.x < DIM) mine[threadIdx.x] = value;
    if (threadIdx.x == 0) mine[DIM] = top, mine[DIM + 1] = total;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&tickets[own], 1) == parts - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    if (threadIdx.x == 0) tickets[own] = 0;
    // One thread per part computes its weight; then the values, several parts in flight.
    __shared__ float part_weight[MAX_PARTS], part_sum[MAX_PARTS];
    const float* theirs = partial + own * parts * (DIM + 2);
    if (threadIdx.x < 32) {
        float best = -INFINITY, tops[MAX_PARTS / 32], sums[MAX_PARTS / 32];
#pragma unroll
        for (int u = 0; u < MAX_PARTS / 32; u++) {
            const int p = u * 32 + lane;
            tops[u] = p < parts ? __ldcg(theirs + p * (DIM + 2) + DIM) : -INFINITY;
            sums[u] = p < parts ? __ldcg(theirs + p * (DIM + 2) + DIM + 1) : 0.f;
            best = fmaxf(best, tops[u]);
        }
        best = warp_max(best);
#pragma unroll
        for (int u = 0; u < MAX_PARTS / 32; u++) {
            const float weight = sums[u] > 0.f ? __expf(tops[u] - best) : 0.f;
            part_weight[u * 32 + lane] = weight, part_sum[u * 32 + lane] = weight * sums[u];
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < DIM; i += blockDim.x) {
        float joined = 0.f, weights = 0.f;
#pragma unroll 16
        for (int p = 0; p < parts; p++) {
            joined += part_weight[p] * __ldcg(theirs + p * (DIM + 2) + i);
            weights += part_sum[p];
        }
        out[own * DIM + i] = from_float<T>(joined / weights);
    }
#endif
}

#define ONE(T, NAME, DIM)                                                                       \
    extern "C" __global__ void CLUSTER(1, CLUSTER_PARTS) __launch_bounds__(ONE_WARPS * 32)      \
        attend_one_##DIM##_##NAME(                                                              \
            const T* queries, const T* keys, const T* values, const uint32_t* positions,        \
            T* out, float* partial, uint32_t* tickets, int kv_heads, int capacity,              \
            float scale) {                                                                      \
        attend_one_body<T, DIM>(                                                                \
            queries, keys, values, positions, out, partial, tickets, kv_heads, capacity,        \
            scale);                                                                             \
    }
#define ONES(T, NAME) ONE(T, NAME, 32) ONE(T, NAME, 64) ONE(T, NAME, 128)
FOR_EACH_TYPE(ONES)
