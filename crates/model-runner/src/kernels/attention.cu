// Attention of many queries, tile by tile.
#include "attention.cuh"
#include "wgmma.cuh"

// Threads that share tiles of keys; a block has several such groups, which take turns at the tiles:
// as many as registers and shared memory allow.
constexpr int GROUP = 128;
template <int DIM>
constexpr int GROUPS = DIM == 128 ? 3 : 2;

__device__ __forceinline__ void group_barrier(int group) {
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(GROUP) : "memory");
}

// Tiles are rows of 64 values, 128 bytes each: a tile of DIM columns is DIM / 64 of them.
constexpr int PART = TILE * 128;

template <typename T, int DIM>
__device__ __forceinline__ void load_tile(
    uint32_t to, const T* from, int64_t row_stride, int first, int count, int thread, int threads) {
    for (int i = thread; i < TILE * (DIM / 8); i += threads) {
        const int row = i / (DIM / 8), chunk = i % (DIM / 8);
        const bool inside = first + row < count;
        copy_async(
            to + chunk / 8 * PART + swizzled<8>(row, chunk % 8),
            from + int64_t(inside ? first + row : 0) * row_stride + chunk * 8, inside);
    }
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Scores of 64 queries with 64 keys.
template <typename T, int DIM>
__device__ __forceinline__ void score(
    float (&scores)[TILE / 8][4], uint32_t query_tile, uint32_t key_tile) {
    group_fence();
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        const uint32_t at = k / 4 * PART + k % 4 * 32;
        group_multiply_64<T>(
            scores, group_operand(query_tile + at), group_operand(key_tile + at), k == 0);
    }
    group_commit();
    group_wait();
}

// Adds the values of 64 keys by their weights.
template <typename T, int DIM>
__device__ __forceinline__ void add_values(
    float (&out)[DIM / 8][4], const uint32_t (&weights)[TILE / 16][4], uint32_t value_tile) {
    group_fence();
#pragma unroll
    for (int k = 0; k < TILE / 16; k++)
        group_multiply_rows<T>(out, weights[k], group_operand(value_tile + k * 16 * 128, PART));
    group_commit();
    group_wait();
}
#else
template <typename T, int DIM>
__device__ __forceinline__ void score(
    float (&scores)[TILE / 8][4], uint32_t query_tile, uint32_t key_tile) {
    const int warp = threadIdx.x % GROUP / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
        for (int j = 0; j < 4; j++) scores[n][j] = 0.f;
    }
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        const uint32_t part = k / 4 * PART;
        uint32_t query[4];
        load_matrices(
            query, query_tile + part + swizzled<8>(warp * 16 + lane % 16, 2 * (k % 4) + lane / 16));
#pragma unroll
        for (int n = 0; n < TILE / 16; n++) {
            uint32_t key[4];
            // Keys 0..7 and 8..15, each with both halves of sixteen columns.
            load_matrices(
                key,
                key_tile + part +
                    swizzled<8>(n * 16 + lane % 8 + lane / 16 * 8, 2 * (k % 4) + lane / 8 % 2));
            multiply<T>(scores[2 * n], query, key[0], key[1]);
            multiply<T>(scores[2 * n + 1], query, key[2], key[3]);
        }
    }
}

template <typename T, int DIM>
__device__ __forceinline__ void add_values(
    float (&out)[DIM / 8][4], const uint32_t (&weights)[TILE / 16][4], uint32_t value_tile) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < TILE / 16; k++) {
#pragma unroll
        for (int n = 0; n < DIM / 16; n++) {
            uint32_t value[4];
            load_matrices_transposed(
                value, value_tile + n / 4 * PART +
                           swizzled<8>(k * 16 + lane % 16, 2 * (n % 4) + lane / 16));
            multiply<T>(out[2 * n], weights[k], value[0], value[1]);
            multiply<T>(out[2 * n + 1], weights[k], value[2], value[3]);
        }
    }
}
#endif

// Attention of many queries, with the running maximum of the online softmax (Milakov and Gimelshein
// 2018; Dao 2023). blockIdx.x is a tile of queries, blockIdx.y batch * heads. Each group has four
// warps of sixteen queries each; at the end the first adds the others' results to its own. Causal:
// the last query attends to every key, each before it to one fewer.
template <typename T, int DIM, bool CAUSAL>
__device__ __forceinline__ void attend_many_body(const AttentionArgs& a) {
    constexpr int BYTES = TILE * DIM * 2, COUNT = GROUPS<DIM>;
    extern __shared__ __align__(1024) uint8_t shared[];
    // The shuffle makes the group the same in every lane for the compiler, too.
    const int group = __shfl_sync(0xffffffffu, threadIdx.x / GROUP, 0),
              thread = threadIdx.x % GROUP;
    const uint32_t query_tile = shared_address(shared),
                   key_tiles = query_tile + (1 + 4 * group) * BYTES,
                   value_tiles = key_tiles + 2 * BYTES;

    // The longest rows of a causal mask run first.
    const int tile = CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const int first_query = tile * TILE, batch = blockIdx.y / a.heads, head = blockIdx.y % a.heads;
    const int warp = thread / 32, lane = thread % 32;
    const T* queries = static_cast<const T*>(a.queries) + batch * a.q.batch + head * a.q.head;
    const T* keys = static_cast<const T*>(a.keys) + batch * a.k.batch + head / a.group * a.k.head;
    const T* values =
        static_cast<const T*>(a.values) + batch * a.v.batch + head / a.group * a.v.head;
    const int hidden = a.keys_count - a.queries_count;
    const int reach = CAUSAL ? min(a.keys_count, first_query + TILE + hidden) : a.keys_count;
    const int tiles = (reach + TILE - 1) / TILE;
    auto load = [&](int t) {
        const int stage = t / COUNT % 2 * BYTES;
        load_tile<T, DIM>(key_tiles + stage, keys, a.k.row, t * TILE, a.keys_count, thread, GROUP);
        load_tile<T, DIM>(
            value_tiles + stage, values, a.v.row, t * TILE, a.keys_count, thread, GROUP);
    };

    load_tile<T, DIM>(
        query_tile, queries, a.q.row, first_query, a.queries_count, threadIdx.x, COUNT * GROUP);
    if (group < tiles) load(group);
    copy_commit();
    copy_wait<0>();
    group_fence_copies();
    __syncthreads();

    float out[DIM / 8][4] = {};
    float largest[2] = {-INFINITY, -INFINITY}, sums[2] = {};
    const float scale = a.scale * LOG2_E;

    for (int t = group; t < tiles; t += COUNT) {
        const int stage = t / COUNT % 2;
        if (t + COUNT < tiles) {
            load(t + COUNT);
            copy_commit();
        }
        float scores[TILE / 8][4];
        score<T, DIM>(scores, query_tile, key_tiles + stage * BYTES);

        const bool edge = (t + 1) * TILE > a.keys_count ||
                          (CAUSAL && (t + 1) * TILE > first_query + warp * 16 + hidden);
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int row = warp * 16 + lane / 4 + j / 2 * 8,
                          key = t * TILE + n * 8 + lane % 4 * 2 + j % 2;
                float score = scores[n][j] * scale;
                if (edge && (key >= a.keys_count || (CAUSAL && key > first_query + row + hidden)))
                    score = -INFINITY;
                scores[n][j] = score;
            }
        }

        uint32_t weights[TILE / 16][4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float top = largest[half];
#pragma unroll
            for (int n = 0; n < TILE / 8; n++)
                top = fmaxf(top, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            const float base = top == -INFINITY ? 0.f : top;
            const float keep = exp2f(largest[half] - base);
            largest[half] = top;
            float sum = 0.f;
#pragma unroll
            for (int n = 0; n < TILE / 8; n++) {
                const float lower = exp2f(scores[n][2 * half] - base),
                            upper = exp2f(scores[n][2 * half + 1] - base);
                sum += lower + upper;
                weights[n / 2][n % 2 * 2 + half] = pack<T>(lower, upper);
            }
            sums[half] = sums[half] * keep + sum;
#pragma unroll
            for (int n = 0; n < DIM / 8; n++)
                out[n][2 * half] *= keep, out[n][2 * half + 1] *= keep;
        }

        add_values<T, DIM>(out, weights, value_tiles + stage * BYTES);
        copy_wait<0>();
        group_fence_copies();
        group_barrier(group);
    }

    // The results of the other groups, an element of each thread after the other.
    constexpr int RESULT = (4 + DIM / 2) * GROUP;
    float* results = reinterpret_cast<float*>(shared + BYTES) + thread;
    __syncthreads();
    if (group > 0) {
        float* mine = results + (group - 1) * RESULT;
#pragma unroll
        for (int half = 0; half < 2; half++)
            mine[half * GROUP] = largest[half], mine[(2 + half) * GROUP] = sums[half];
#pragma unroll
        for (int i = 0; i < DIM / 2; i++) mine[(4 + i) * GROUP] = out[i / 4][i % 4];
    }
    __syncthreads();
    if (group > 0) return;
#pragma unroll
    for (int from = 1; from < COUNT; from++) {
        const float* other = results + (from - 1) * RESULT;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            // A group without a tile has no largest score and adds nothing.
            const float theirs = other[half * GROUP], top = fmaxf(largest[half], theirs);
            const float keep = exp2f(largest[half] - top), add = exp2f(theirs - top);
            sums[half] = sums[half] * keep + other[(2 + half) * GROUP] * add;
            largest[half] = top;
#pragma unroll
            for (int n = 0; n < DIM / 8; n++) {
#pragma unroll
                for (int j = 2 * half; j < 2 * half + 2; j++)
                    out[n][j] = out[n][j] * keep + other[(4 + 4 * n + j) * GROUP] * add;
            }
        }
    }

    store_attention<T, DIM>(a, batch, head, first_query + warp * 16 + lane / 4, out, sums);
}

#define MANY(T, NAME, DIM)                                                      \
    extern "C" __global__ void __launch_bounds__(GROUPS<DIM>* GROUP, 128 / DIM) \
        attend_causal_##DIM##_##NAME(const AttentionArgs a) {                   \
        attend_many_body<T, DIM, true>(a);                                      \
    }                                                                           \
    extern "C" __global__ void __launch_bounds__(GROUPS<DIM>* GROUP, 128 / DIM) \
        attend_all_##DIM##_##NAME(const AttentionArgs a) {                      \
        attend_many_body<T, DIM, false>(a);                                     \
    }
#define MANIES(T, NAME) MANY(T, NAME, 64) MANY(T, NAME, 128)
FOR_EACH_HALF(MANIES)
