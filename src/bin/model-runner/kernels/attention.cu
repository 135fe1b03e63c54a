// Attention of many queries, and decomposed relative positions.
#include "mma.cuh"

// Strides of a matrix of attention: elements between batches, heads and rows.
struct Strides {
    int64_t batch, head, row;
};

struct AttentionArgs {
    const void *queries, *keys, *values;
    void* out;
    Strides q, k, v, o;
    // [batch * heads, queries, 2 * side] in float: each query's terms for the row and for the
    // column of a key on a grid.
    const float* relative;
    int heads, group, queries_count, keys_count, side;
    float scale;
};

constexpr int TILE = 64;

template <typename T, int DIM>
__device__ __forceinline__ void load_tile(
    uint32_t to, const T* from, int64_t row_stride, int first, int count) {
    constexpr int CHUNKS = DIM / 8;
    for (int i = threadIdx.x; i < TILE * CHUNKS; i += 128) {
        const int row = i / CHUNKS, chunk = i % CHUNKS;
        const bool inside = first + row < count;
        copy_async(
            to + swizzled<CHUNKS>(row, chunk),
            from + int64_t(inside ? first + row : 0) * row_stride + chunk * 8, inside);
    }
}

// Attention of many queries, tile by tile, with the running maximum of the online softmax (Milakov
// and Gimelshein 2018; Dao 2023). blockIdx.x is a tile of queries, blockIdx.y batch * heads. Four
// warps, sixteen queries each. Causal: the last query attends to every key, each before it to one
// fewer.
template <typename T, int DIM, bool CAUSAL, bool RELATIVE>
__device__ __forceinline__ void attend_many_body(const AttentionArgs& a) {
    constexpr int CHUNKS = DIM / 8, BYTES = TILE * DIM * 2;
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t query_tile = shared_address(shared), key_tiles = query_tile + BYTES,
                   value_tiles = key_tiles + 2 * BYTES;
    float* relative = reinterpret_cast<float*>(shared + 5 * BYTES);

    // The longest rows of a causal mask run first.
    const int tile = CAUSAL ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const int first_query = tile * TILE, batch = blockIdx.y / a.heads, head = blockIdx.y % a.heads;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const T* queries = static_cast<const T*>(a.queries) + batch * a.q.batch + head * a.q.head;
    const T* keys = static_cast<const T*>(a.keys) + batch * a.k.batch + head / a.group * a.k.head;
    const T* values =
        static_cast<const T*>(a.values) + batch * a.v.batch + head / a.group * a.v.head;
    const int hidden = a.keys_count - a.queries_count;
    const int reach = CAUSAL ? min(a.keys_count, first_query + TILE + hidden) : a.keys_count;
    const int tiles = (reach + TILE - 1) / TILE;

    load_tile<T, DIM>(query_tile, queries, a.q.row, first_query, a.queries_count);
    load_tile<T, DIM>(key_tiles, keys, a.k.row, 0, a.keys_count);
    load_tile<T, DIM>(value_tiles, values, a.v.row, 0, a.keys_count);
    copy_commit();
    if (RELATIVE) {
        // One element longer than a row, so that rows start in different banks.
        const int width = 2 * a.side, pitch = width + 1;
        const float* rows =
            a.relative + (size_t(blockIdx.y) * a.queries_count + first_query) * width;
        const int count = min(TILE, a.queries_count - first_query) * width;
        for (int i = threadIdx.x; i < TILE * width; i += 128)
            relative[i / width * pitch + i % width] = i < count ? rows[i] : 0.f;
    }

    float out[DIM / 8][4] = {};
    float largest[2] = {-INFINITY, -INFINITY}, sums[2] = {};
    uint32_t query[DIM / 16][4];
    const float scale = a.scale * 1.44269504f;  // exponents to the base of two

    for (int t = 0; t < tiles; t++) {
        const int stage = t % 2;
        if (t + 1 < tiles) {
            load_tile<T, DIM>(
                key_tiles + (1 - stage) * BYTES, keys, a.k.row, (t + 1) * TILE, a.keys_count);
            load_tile<T, DIM>(
                value_tiles + (1 - stage) * BYTES, values, a.v.row, (t + 1) * TILE, a.keys_count);
            copy_commit();
            copy_wait<1>();
        } else {
            copy_wait<0>();
        }
        __syncthreads();
        if (t == 0) {
#pragma unroll
            for (int k = 0; k < DIM / 16; k++) {
                load_matrices(
                    query[k],
                    query_tile + swizzled<CHUNKS>(warp * 16 + lane % 16, 2 * k + lane / 16));
            }
        }

        float scores[TILE / 8][4] = {};
        const uint32_t key_tile = key_tiles + stage * BYTES,
                       value_tile = value_tiles + stage * BYTES;
#pragma unroll
        for (int k = 0; k < DIM / 16; k++) {
#pragma unroll
            for (int n = 0; n < TILE / 16; n++) {
                uint32_t key[4];
                // Keys 0..7 and 8..15, each with both halves of sixteen columns.
                load_matrices(
                    key, key_tile + swizzled<CHUNKS>(
                                        n * 16 + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
                multiply<T>(scores[2 * n], query[k], key[0], key[1]);
                multiply<T>(scores[2 * n + 1], query[k], key[2], key[3]);
            }
        }

        const bool edge = (t + 1) * TILE > a.keys_count ||
                          (CAUSAL && (t + 1) * TILE > first_query + warp * 16 + hidden);
#pragma unroll
        for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int row = warp * 16 + lane / 4 + j / 2 * 8,
                          key = t * TILE + n * 8 + lane % 4 * 2 + j % 2;
                float score = scores[n][j] * scale;
                if (RELATIVE) {
                    const float* mine = relative + row * (2 * a.side + 1);
                    const int at = min(key, a.side * a.side - 1);
                    score += (mine[at / a.side] + mine[a.side + at % a.side]) * 1.44269504f;
                }
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

#pragma unroll
        for (int k = 0; k < TILE / 16; k++) {
#pragma unroll
            for (int n = 0; n < DIM / 16; n++) {
                uint32_t value[4];
                load_matrices_transposed(
                    value, value_tile + swizzled<CHUNKS>(k * 16 + lane % 16, 2 * n + lane / 16));
                multiply<T>(out[2 * n], weights[k], value[0], value[1]);
                multiply<T>(out[2 * n + 1], weights[k], value[2], value[3]);
            }
        }
        __syncthreads();
    }

    T* to = static_cast<T*>(a.out) + batch * a.o.batch + head * a.o.head;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = sums[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const int row = first_query + warp * 16 + lane / 4 + half * 8;
        if (row >= a.queries_count) continue;
        const float by = 1.f / sum;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            uint32_t pair = pack<T>(out[n][2 * half] * by, out[n][2 * half + 1] * by);
            *reinterpret_cast<uint32_t*>(to + row * a.o.row + n * 8 + lane % 4 * 2) = pair;
        }
    }
}

// relative[batch * heads][query][0..side] = query . rows[y - ky + side - 1] and [side..2 side] =
// query . columns[x - kx + side - 1] on a grid of side * side. blockIdx.x is a row of the grid,
// blockIdx.y batch * heads.
template <typename T, int DIM>
__device__ __forceinline__ void relative_body(
    const T* queries, const T* rows, const T* columns, float* relative, int64_t q_batch,
    int64_t q_head, int64_t q_row, int heads, int side) {
    // A row in `shared` is two elements longer than a vector, so that vectors start in different
    // banks.
    constexpr int PITCH = DIM + 2;
    extern __shared__ __align__(128) uint8_t shared[];
    T* query = reinterpret_cast<T*>(shared);
    T* table = query + side * PITCH;
    const int y = blockIdx.x, batch = blockIdx.y / heads, head = blockIdx.y % heads;
    const T* from = queries + batch * q_batch + head * q_head + int64_t(y) * side * q_row;
    for (int i = threadIdx.x; i < side * DIM; i += blockDim.x)
        query[i / DIM * PITCH + i % DIM] = from[i / DIM * q_row + i % DIM];
    float* to = relative + (size_t(blockIdx.y) * side + y) * side * 2 * side;
    for (int pass = 0; pass < 2; pass++) {
        const T* source = pass ? columns : rows;
        const int offsets = 2 * side - 1;
        __syncthreads();
        for (int i = threadIdx.x; i < offsets * DIM; i += blockDim.x)
            table[i / DIM * PITCH + i % DIM] = source[i];
        __syncthreads();
        for (int i = threadIdx.x; i < side * side; i += blockDim.x) {
            const int x = i / side, to_key = i % side;
            const T* offset = table + ((pass ? x : y) - to_key + side - 1) * PITCH;
            float sum = 0.f;
#pragma unroll 16
            for (int c = 0; c < DIM; c++)
                sum += to_float(query[x * PITCH + c]) * to_float(offset[c]);
            to[x * 2 * side + pass * side + to_key] = sum;
        }
    }
}

#define MANY(T, NAME, DIM)                                                                   \
    extern "C" __global__ void __launch_bounds__(128)                                        \
        attend_causal_##DIM##_##NAME(const AttentionArgs a) {                                \
        attend_many_body<T, DIM, true, false>(a);                                            \
    }                                                                                        \
    extern "C" __global__ void __launch_bounds__(128)                                        \
        attend_all_##DIM##_##NAME(const AttentionArgs a) {                                   \
        attend_many_body<T, DIM, false, false>(a);                                           \
    }                                                                                        \
    extern "C" __global__ void __launch_bounds__(128)                                        \
        attend_relative_##DIM##_##NAME(const AttentionArgs a) {                              \
        attend_many_body<T, DIM, false, true>(a);                                            \
    }                                                                                        \
    extern "C" __global__ void relative_##DIM##_##NAME(                                      \
        const T* queries, const T* rows, const T* columns, float* relative, int64_t q_batch, \
        int64_t q_head, int64_t q_row, int heads, int side) {                                \
        relative_body<T, DIM>(                                                               \
            queries, rows, columns, relative, q_batch, q_head, q_row, heads, side);          \
    }
#define MANIES(T, NAME) MANY(T, NAME, 64) MANY(T, NAME, 128)
FOR_EACH_HALF(MANIES)
