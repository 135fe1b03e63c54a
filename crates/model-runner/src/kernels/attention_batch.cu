// Attention of one token of each of many sequences over the cache.
#include "mma.cuh"

constexpr int WARPS = 4, THREADS = WARPS * 32;
// Pieces of the keys in shared memory (all but one are on their way), and the keys of a piece that
// a group of lanes has.
constexpr int STAGES = 4, KEYS = 2;

// Queries [sequences, heads, dim] to the keys and values in the cache [sequences, kv_heads,
// capacity, dim], up to and including each sequence's position. blockIdx.x has GROUP neighbouring
// heads, which share their keys, blockIdx.y one of gridDim.y parts of the keys, blockIdx.z the
// sequence. LANES lanes read a key, 16 bytes each; a lane reads back only what it copied itself.
// The part that finishes last joins all parts: partial is [sequences, heads, parts, DIM + 2], and
// tickets has a counter per sequence and head, 0 before and after.
template <typename T, int DIM, int GROUP>
__device__ __forceinline__ void attend_batch_body(
    const T* queries, const T* keys, const T* values, const uint32_t* positions, T* out,
    float* partial, uint32_t* tickets, int kv_heads, int capacity, float scale) {
    constexpr int LANES = DIM / WIDE<T>, GROUPS = 32 / LANES, ACROSS = WARPS * GROUPS;
    static_assert(LANES <= 32 && 32 % LANES == 0, "a key spans at most a warp");
    __shared__ uint4 ring[STAGES][KEYS][2][THREADS];
    const int heads = gridDim.x * GROUP, part = blockIdx.y, parts = gridDim.y;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32,
              group = warp * GROUPS + lane / LANES, column = lane % LANES * WIDE<T>;
    // The first head among the heads of all sequences.
    const size_t own = (size_t(blockIdx.z) * gridDim.x + blockIdx.x) * GROUP;
    const int length = positions[blockIdx.z] + 1, chunk = (length + parts - 1) / parts;
    const int start = part * chunk, end = min(length, start + chunk);
    const int pieces = max(0, (end - start + KEYS * ACROSS - 1) / (KEYS * ACROSS));
    const int kv_head = blockIdx.x * GROUP / (heads / kv_heads);
    const size_t base = (size_t(blockIdx.z) * kv_heads + kv_head) * capacity * DIM + column;

    auto key_of = [&](int piece, int u) { return start + (piece * KEYS + u) * ACROSS + group; };
    auto load = [&](int piece) {
#pragma unroll
        for (int u = 0; u < KEYS; u++) {
            const int key = key_of(piece, u);
            const bool inside = key < end;
            const size_t at = base + size_t(inside ? key : 0) * DIM;
            uint4(&to)[2][THREADS] = ring[piece % STAGES][u];
            copy_async(shared_address(&to[0][threadIdx.x]), keys + at, inside);
            copy_async(shared_address(&to[1][threadIdx.x]), values + at, inside);
        }
    };
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < pieces) load(s);
        copy_commit();
    }
    float query[GROUP][WIDE<T>], mixed[GROUP][WIDE<T>] = {}, largest[GROUP], sum[GROUP];
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        load_wide(queries + (own + g) * DIM + column, query[g]);
#pragma unroll
        for (int j = 0; j < WIDE<T>; j++) query[g][j] *= scale;
        largest[g] = -INFINITY, sum[g] = 0.f;
    }
    for (int piece = 0; piece < pieces; piece++) {
        copy_wait<STAGES - 2>();
        // Reads of shared memory stay between the copies.
        __syncwarp();
        if (piece + STAGES - 1 < pieces) load(piece + STAGES - 1);
        copy_commit();
        const uint4(&from)[KEYS][2][THREADS] = ring[piece % STAGES];
        float scores[GROUP][KEYS];
#pragma unroll
        for (int u = 0; u < KEYS; u++) {
            float k[WIDE<T>];
            unpack<T>(from[u][0][threadIdx.x], k);
            const bool inside = key_of(piece, u) < end;
#pragma unroll
            for (int g = 0; g < GROUP; g++) {
                float score = 0.f;
#pragma unroll
                for (int j = 0; j < WIDE<T>; j++) score += query[g][j] * k[j];
#pragma unroll
                for (int offset = LANES / 2; offset > 0; offset /= 2)
                    score += __shfl_xor_sync(0xffffffffu, score, offset);
                scores[g][u] = inside ? score : -INFINITY;
            }
        }
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            float top = largest[g];
#pragma unroll
            for (int u = 0; u < KEYS; u++) top = fmaxf(top, scores[g][u]);
            // A group of lanes without a key has no largest score.
            const float zero = top == -INFINITY ? 0.f : top, keep = __expf(largest[g] - zero);
            largest[g] = top, sum[g] *= keep;
#pragma unroll
            for (int j = 0; j < WIDE<T>; j++) mixed[g][j] *= keep;
#pragma unroll
            for (int u = 0; u < KEYS; u++)
                scores[g][u] = __expf(scores[g][u] - zero), sum[g] += scores[g][u];
        }
#pragma unroll
        for (int u = 0; u < KEYS; u++) {
            float v[WIDE<T>];
            unpack<T>(from[u][1][threadIdx.x], v);
#pragma unroll
            for (int g = 0; g < GROUP; g++) {
#pragma unroll
                for (int j = 0; j < WIDE<T>; j++) mixed[g][j] += scores[g][u] * v[j];
            }
        }
    }

    // Joins the groups of each warp, then the warps.
    __shared__ float warp_mixed[WARPS][GROUP][DIM], warp_largest[WARPS][GROUP],
        warp_sums[WARPS][GROUP];
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
#pragma unroll
        for (int offset = LANES; offset < 32; offset *= 2) {
            const float other = __shfl_xor_sync(0xffffffffu, largest[g], offset),
                        other_sum = __shfl_xor_sync(0xffffffffu, sum[g], offset),
                        larger = fmaxf(largest[g], other);
            const float keep = sum[g] > 0.f ? __expf(largest[g] - larger) : 0.f,
                        add = other_sum > 0.f ? __expf(other - larger) : 0.f;
            sum[g] = sum[g] * keep + other_sum * add, largest[g] = larger;
#pragma unroll
            for (int j = 0; j < WIDE<T>; j++) {
                const float more = __shfl_xor_sync(0xffffffffu, mixed[g][j], offset);
                mixed[g][j] = mixed[g][j] * keep + more * add;
            }
        }
        if (lane < LANES) {
#pragma unroll
            for (int j = 0; j < WIDE<T>; j++) warp_mixed[warp][g][column + j] = mixed[g][j];
            if (column == 0) warp_largest[warp][g] = largest[g], warp_sums[warp][g] = sum[g];
        }
    }
    __syncthreads();
    for (int at = threadIdx.x; at < GROUP * DIM; at += THREADS) {
        const int g = at / DIM, i = at % DIM;
        float top = -INFINITY, total = 0.f, value = 0.f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) top = fmaxf(top, warp_largest[w][g]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float weight = warp_sums[w][g] > 0.f ? __expf(warp_largest[w][g] - top) : 0.f;
            value += weight * warp_mixed[w][g][i], total += weight * warp_sums[w][g];
        }
        if (parts == 1) {
            out[(own + g) * DIM + i] = from_float<T>(value / total);
        } else {
            float* mine = partial + ((own + g) * parts + part) * (DIM + 2);
            mine[i] = value;
            if (i == 0) mine[DIM] = top, mine[DIM + 1] = total;
        }
    }
    if (parts == 1) return;
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&tickets[own], 1) == parts - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    if (threadIdx.x == 0) tickets[own] = 0;
    for (int at = threadIdx.x; at < GROUP * DIM; at += THREADS) {
        const int g = at / DIM, i = at % DIM;
        const float* theirs = partial + (own + g) * parts * (DIM + 2);
        float best = -INFINITY, joined = 0.f, weights = 0.f;
#pragma unroll 8
        for (int p = 0; p < parts; p++) best = fmaxf(best, __ldcg(theirs + p * (DIM + 2) + DIM));
#pragma unroll 8
        for (int p = 0; p < parts; p++) {
            const float* its = theirs + p * (DIM + 2);
            const float of_part = __ldcg(its + DIM + 1),
                        weight = of_part > 0.f ? __expf(__ldcg(its + DIM) - best) : 0.f;
            joined += weight * __ldcg(its + i), weights += weight * of_part;
        }
        out[(own + g) * DIM + i] = from_float<T>(joined / weights);
    }
}

// Blocks of an SM: as many as the registers of GROUP heads leave room for.
#define BATCH(T, NAME, GROUP, DIM)                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, GROUP > 2 ? 4 : 5)                    \
        attend_batch_##GROUP##_##DIM##_##NAME(                                                  \
            const T* queries, const T* keys, const T* values, const uint32_t* positions,        \
            T* out, float* partial, uint32_t* tickets, int kv_heads, int capacity,              \
            float scale) {                                                                      \
        attend_batch_body<T, DIM, GROUP>(                                                       \
            queries, keys, values, positions, out, partial, tickets, kv_heads, capacity,        \
            scale);                                                                             \
    }
#define BATCHES(T, NAME)                                                                        \
    BATCH(T, NAME, 1, 32)                                                                       \
    BATCH(T, NAME, 1, 64)                                                                       \
    BATCH(T, NAME, 1, 128)                                                                      \
    BATCH(T, NAME, 2, 32)                                                                       \
    BATCH(T, NAME, 2, 64)                                                                       \
    BATCH(T, NAME, 2, 128)                                                                      \
    BATCH(T, NAME, 4, 32)                                                                       \
    BATCH(T, NAME, 4, 64)                                                                       \
    BATCH(T, NAME, 4, 128)
FOR_EACH_TYPE(BATCHES)
