// Rotary positions, with the append of keys and values to the cache.
#include "common.cuh"

// Rotates the queries and keys of [tokens, heads + 2 kv_heads, dim], after normalising them if
// there are weights, and appends keys and values to the cache [sequences, kv_heads, capacity, dim].
// The first token of a single sequence is at positions[0]; several sequences have one token each,
// at its own position. One warp per token and head.
template <typename T>
__device__ __forceinline__ void rope_body(
    const T* qkv, const float* cosines, const float* sines, const T* query_norm, const T* key_norm,
    const uint32_t* positions, T* queries, T* keys, T* values, int tokens, int sequences, int heads,
    int kv_heads, int dim, int capacity, float eps) {
    const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32,
              all = heads + 2 * kv_heads;
    const int token = warp / all, head = warp % all;
    if (token >= tokens) return;
    const int sequence = sequences > 1 ? token : 0,
              place = positions[sequence] + (sequences > 1 ? 0 : token);
    const T* from = qkv + size_t(warp) * dim;
    const int half = dim / 2;
    const bool is_query = head < heads, is_value = head >= heads + kv_heads;
    const int kv_head = is_value ? head - heads - kv_heads : head - heads;
    if (place >= capacity) return;
    T* to = is_query ? queries + (size_t(token) * heads + head) * dim
                     : (is_value ? values : keys) +
                           ((size_t(sequence) * kv_heads + kv_head) * capacity + place) * dim;
    if (is_value) {
        for (int i = lane; i < dim; i += 32) to[i] = from[i];
        return;
    }
    const T* norm = is_query ? query_norm : key_norm;
    float scale = 1.f;
    if (norm) {
        float squares = 0.f;
        for (int i = lane; i < dim; i += 32) squares += to_float(from[i]) * to_float(from[i]);
        scale = rsqrtf(warp_sum(squares) / dim + eps);
    }
    for (int i = lane; i < half; i += 32) {
        float a = to_float(from[i]), b = to_float(from[i + half]);
        if (norm) {
            a = to_float(from_float<T>(a * scale * to_float(norm[i])));
            b = to_float(from_float<T>(b * scale * to_float(norm[i + half])));
        }
        const float c = cosines[size_t(place) * half + i], s = sines[size_t(place) * half + i];
        to[i] = from_float<T>(a * c - b * s);
        to[i + half] = from_float<T>(b * c + a * s);
    }
}

// The same for heads of 2 * lanes * WIDE<T> elements, `lanes` a power of two up to 32: each of
// these lanes has 16 bytes of both halves of a head.
template <typename T>
__device__ __forceinline__ void rope_wide_body(
    const T* qkv, const float* cosines, const float* sines, const T* query_norm, const T* key_norm,
    const uint32_t* positions, T* queries, T* keys, T* values, int tokens, int sequences, int heads,
    int kv_heads, int dim, int capacity, float eps) {
    const int half = dim / 2, lanes = half / WIDE<T>, all = heads + 2 * kv_heads,
              thread = blockIdx.x * blockDim.x + threadIdx.x, unit = thread / lanes,
              token = unit / all, head = unit % all, i = thread % lanes * WIDE<T>;
    // Threads past the last token read the last position.
    const int sequence = sequences > 1 ? min(token, sequences - 1) : 0,
              place = positions[sequence] + (sequences > 1 ? 0 : token);
    const bool inside = token < tokens && place < capacity, is_query = head < heads,
               is_value = head >= heads + kv_heads;
    float lower[WIDE<T>] = {}, upper[WIDE<T>] = {};
    if (inside) {
        load_wide(qkv + size_t(unit) * dim + i, lower);
        load_wide(qkv + size_t(unit) * dim + half + i, upper);
    }
    if (query_norm) {
        // Every lane of the warp takes part, also lanes of values and past the last token.
        float squares = 0.f;
#pragma unroll
        for (int j = 0; j < WIDE<T>; j++) squares += lower[j] * lower[j] + upper[j] * upper[j];
        for (int offset = lanes / 2; offset > 0; offset /= 2)
            squares += __shfl_xor_sync(0xffffffffu, squares, offset);
        const float scale = rsqrtf(squares / dim + eps);
        const T* norm = is_query ? query_norm : key_norm;
        float by_lower[WIDE<T>], by_upper[WIDE<T>];
        load_wide(norm + i, by_lower);
        load_wide(norm + half + i, by_upper);
#pragma unroll
        for (int j = 0; j < WIDE<T>; j++) {
            if (is_value) break;
            lower[j] = to_float(from_float<T>(lower[j] * scale * by_lower[j]));
            upper[j] = to_float(from_float<T>(upper[j] * scale * by_upper[j]));
        }
    }
    if (!inside) return;
    if (!is_value) {
        const float4* cosine = reinterpret_cast<const float4*>(cosines + size_t(place) * half + i);
        const float4* sine = reinterpret_cast<const float4*>(sines + size_t(place) * half + i);
#pragma unroll
        for (int j = 0; j < WIDE<T>; j += 4) {
            const float4 by_cosine = cosine[j / 4], by_sine = sine[j / 4];
            const float c[4] = {by_cosine.x, by_cosine.y, by_cosine.z, by_cosine.w},
                        s[4] = {by_sine.x, by_sine.y, by_sine.z, by_sine.w};
#pragma unroll
            for (int l = 0; l < 4; l++) {
                const float a = lower[j + l], b = upper[j + l];
                lower[j + l] = a * c[l] - b * s[l];
                upper[j + l] = b * c[l] + a * s[l];
            }
        }
    }
    const int kv_head = is_value ? head - heads - kv_heads : head - heads;
    T* to = is_query ? queries + (size_t(token) * heads + head) * dim
                     : (is_value ? values : keys) +
                           ((size_t(sequence) * kv_heads + kv_head) * capacity + place) * dim;
    store_wide(to + i, lower);
    store_wide(to + half + i, upper);
}

#define PARAMETERS(T)                                                                            \
    const T *qkv, const float *cosines, const float *sines, const T *query_norm,                 \
        const T *key_norm, const uint32_t *positions, T *queries, T *keys, T *values,            \
        int tokens, int sequences, int heads, int kv_heads, int dim, int capacity, float eps
#define ARGUMENTS                                                                          \
    qkv, cosines, sines, query_norm, key_norm, positions, queries, keys, values, tokens,   \
        sequences, heads, kv_heads, dim, capacity, eps
#define ROPE(T, NAME)                                                                  \
    extern "C" __global__ void rope_##NAME(PARAMETERS(T)) { rope_body<T>(ARGUMENTS); } \
    extern "C" __global__ void rope_wide_##NAME(PARAMETERS(T)) { rope_wide_body<T>(ARGUMENTS); }
FOR_EACH_TYPE(ROPE)
