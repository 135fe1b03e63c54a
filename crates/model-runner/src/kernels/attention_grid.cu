// Attention of every place of a square grid to every other, with decomposed relative positions (Li
// et al. 2022, MViTv2; as in SAM): a score has a term of the query for the key's row and one for
// its column.
#include "attention.cuh"

// How a grid is cut into tiles of keys: whole rows, each padded to a multiple of eight places, so
// that the place of each element of a product is known at compile time.
template <int SIDE>
struct GridTiles {
    static constexpr int SLOTS = (SIDE + 7) / 8 * 8,
                         ROWS = SIDE < 16   ? SIDE / 2
                                : SIDE > 40 ? 1
                                            : 2,
                         KEYS = ROWS * SLOTS, COUNT = SIDE / ROWS;
    // Vectors of the offsets between two rows, in whole products.
    static constexpr int OFFSETS = (2 * SIDE - 1 + 15) / 16 * 16;
    // Pitches of the terms without bank conflicts: of single floats, and of pairs.
    static constexpr int ROW_PITCH = SIDE | 1, COLUMN_PITCH = SLOTS % 16 ? SLOTS : SLOTS + 8;
    static_assert(SIDE % ROWS == 0 && KEYS % 16 == 0 && SLOTS - SIDE <= 4, "tiles fit the grid");
};

// blockIdx.x is a tile of queries, blockIdx.y batch * heads. Four warps, sixteen queries each. The
// terms of a query are products with the vectors of all offsets; the terms of its own row and
// column are kept: the products of scores start with the terms of columns, the softmax adds the
// terms of rows.
template <typename T, int SIDE>
__device__ __forceinline__ void attend_grid_body(const AttentionArgs& a) {
    using Tiles = GridTiles<SIDE>;
    constexpr int DIM = 64, CHUNKS = DIM / 8, KEYS = Tiles::KEYS, EIGHTS = Tiles::SLOTS / 8,
                  BYTES = KEYS * DIM * 2, TABLE_BYTES = Tiles::OFFSETS * DIM * 2;
    // The vectors are where later tiles of keys are: the second stage's tiles, if they fit there.
    constexpr bool EARLY = TABLE_BYTES <= BYTES;
    static_assert(TABLE_BYTES <= 2 * BYTES, "the vectors fit the tiles");
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t query_tile = shared_address(shared), tiles = query_tile + TILE * DIM * 2,
                   tables = tiles + (EARLY ? 2 * BYTES : 0);
    float* columns = reinterpret_cast<float*>(shared + TILE * DIM * 2 + 4 * BYTES);
    float* rows = columns + TILE * Tiles::COLUMN_PITCH;

    const int batch = blockIdx.y / a.heads, head = blockIdx.y % a.heads,
              first_query = blockIdx.x * TILE, warp = threadIdx.x / 32, lane = threadIdx.x % 32,
              mine = warp * 16 + lane / 4;
    const T* queries = static_cast<const T*>(a.queries) + batch * a.q.batch + head * a.q.head;
    const T* keys = static_cast<const T*>(a.keys) + batch * a.k.batch + head * a.k.head;
    const T* values = static_cast<const T*>(a.values) + batch * a.v.batch + head * a.v.head;
    auto load = [&](int t) {
        const uint32_t to = tiles + t % 2 * 2 * BYTES;
        for (int i = threadIdx.x; i < KEYS * CHUNKS; i += 128) {
            const int slot = i / CHUNKS, chunk = i % CHUNKS, x = slot % Tiles::SLOTS;
            const bool inside = x < SIDE;
            const int64_t place = inside ? (t * Tiles::ROWS + slot / Tiles::SLOTS) * SIDE + x : 0;
            const uint32_t at = to + swizzled<CHUNKS>(slot, chunk);
            copy_async(at, keys + place * a.k.row + chunk * 8, inside);
            copy_async(at + BYTES, values + place * a.v.row + chunk * 8, inside);
        }
    };

    load_rows<T, DIM, TILE>(
        query_tile, queries, a.q.row, first_query, a.queries_count, threadIdx.x, 128);
    load_rows<T, DIM, Tiles::OFFSETS>(
        tables, static_cast<const T*>(a.rows), DIM, 0, 2 * SIDE - 1, threadIdx.x, 128);
    load_rows<T, DIM, Tiles::OFFSETS>(
        tables + TABLE_BYTES, static_cast<const T*>(a.columns), DIM, 0, 2 * SIDE - 1, threadIdx.x,
        128);
    if (EARLY) load(0);
    copy_commit();
    copy_wait<0>();
    __syncthreads();

    uint32_t query[DIM / 16][4];
#pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        load_matrices(
            query[k], query_tile + swizzled<CHUNKS>(warp * 16 + lane % 16, 2 * k + lane / 16));
    }
    const float scale = a.scale * LOG2_E, unscale = 1.f / a.scale;
#pragma unroll
    for (int table = 0; table < 2; table++) {
#pragma unroll 2
        for (int n = 0; n < Tiles::OFFSETS / 16; n++) {
            float terms[2][4] = {};
#pragma unroll
            for (int k = 0; k < DIM / 16; k++) {
                uint32_t offset[4];
                load_matrices(
                    offset,
                    tables + table * TABLE_BYTES +
                        swizzled<CHUNKS>(n * 16 + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
                multiply<T>(terms[0], query[k], offset[0], offset[1]);
                multiply<T>(terms[1], query[k], offset[2], offset[3]);
            }
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const int row = mine + j / 2 % 2 * 8, place = first_query + row,
                          offset = n * 16 + j / 4 * 8 + lane % 4 * 2 + j % 2;
                const int to = (table ? place % SIDE : place / SIDE) + SIDE - 1 - offset;
                if (to < 0 || to >= SIDE) continue;
                const float term = terms[j / 4][j % 4];
                if (table)
                    columns[row * Tiles::COLUMN_PITCH + to] = term * unscale;
                else
                    rows[row * Tiles::ROW_PITCH + to] = term * LOG2_E;
            }
        }
    }
    if (lane % 4 < Tiles::SLOTS - SIDE) {
        for (int row = mine; row < mine + 16; row += 8)
            columns[row * Tiles::COLUMN_PITCH + SIDE + lane % 4] = -INFINITY;
    }
    __syncthreads();
    if (!EARLY) {
        load(0);
        copy_commit();
        copy_wait<0>();
        __syncthreads();
    }

    float out[DIM / 8][4] = {};
    float largest[2] = {-INFINITY, -INFINITY}, sums[2] = {};
    for (int t = 0; t < Tiles::COUNT; t++) {
        if (t + 1 < Tiles::COUNT) {
            load(t + 1);
            copy_commit();
        }
        const uint32_t key_tile = tiles + t % 2 * 2 * BYTES, value_tile = key_tile + BYTES;
        float scores[KEYS / 8][4];
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
            const float* column =
                columns + mine * Tiles::COLUMN_PITCH + n % EIGHTS * 8 + lane % 4 * 2;
            const float2 first = *reinterpret_cast<const float2*>(column),
                         second =
                             *reinterpret_cast<const float2*>(column + 8 * Tiles::COLUMN_PITCH);
            scores[n][0] = first.x, scores[n][1] = first.y;
            scores[n][2] = second.x, scores[n][3] = second.y;
        }
#pragma unroll
        for (int k = 0; k < DIM / 16; k++) {
#pragma unroll
            for (int n = 0; n < KEYS / 16; n++) {
                uint32_t key[4];
                load_matrices(
                    key, key_tile + swizzled<CHUNKS>(
                                        n * 16 + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
                multiply<T>(scores[2 * n], query[k], key[0], key[1]);
                multiply<T>(scores[2 * n + 1], query[k], key[2], key[3]);
            }
        }

        uint32_t weights[KEYS / 16][4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float row[Tiles::ROWS], top = largest[half];
#pragma unroll
            for (int r = 0; r < Tiles::ROWS; r++) {
                row[r] = rows[(mine + half * 8) * Tiles::ROW_PITCH + t * Tiles::ROWS + r];
                float best = -INFINITY;
#pragma unroll
                for (int n = r * EIGHTS; n < (r + 1) * EIGHTS; n++)
                    best = fmaxf(best, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
                top = fmaxf(top, best * scale + row[r]);
            }
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            const float keep = exp2f(largest[half] - top);
            largest[half] = top;
            float sum = 0.f;
#pragma unroll
            for (int n = 0; n < KEYS / 8; n++) {
                const float base = row[n / EIGHTS] - top;
                const float lower = exp2f(scores[n][2 * half] * scale + base),
                            upper = exp2f(scores[n][2 * half + 1] * scale + base);
                sum += lower + upper;
                weights[n / 2][n % 2 * 2 + half] = pack<T>(lower, upper);
            }
            sums[half] = sums[half] * keep + sum;
#pragma unroll
            for (int n = 0; n < DIM / 8; n++)
                out[n][2 * half] *= keep, out[n][2 * half + 1] *= keep;
        }

#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
#pragma unroll
            for (int n = 0; n < DIM / 16; n++) {
                uint32_t value[4];
                load_matrices_transposed(
                    value, value_tile + swizzled<CHUNKS>(k * 16 + lane % 16, 2 * n + lane / 16));
                multiply<T>(out[2 * n], weights[k], value[0], value[1]);
                multiply<T>(out[2 * n + 1], weights[k], value[2], value[3]);
            }
        }
        copy_wait<0>();
        __syncthreads();
    }
    store_attention<T, DIM>(a, batch, head, first_query + mine, out, sums);
}

#define GRID(T, NAME, SIDE)                                  \
    extern "C" __global__ void __launch_bounds__(128, 3)     \
        attend_grid_##SIDE##_##NAME(const AttentionArgs a) { \
        attend_grid_body<T, SIDE>(a);                        \
    }
// Windows of SAM, and views of 512, 640, 1024 and 1280 pixels.
#define GRIDS(T, NAME) \
    GRID(T, NAME, 14) GRID(T, NAME, 32) GRID(T, NAME, 40) GRID(T, NAME, 64) GRID(T, NAME, 80)
FOR_EACH_HALF(GRIDS)
