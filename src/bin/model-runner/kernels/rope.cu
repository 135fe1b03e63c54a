// Rotary positions, with the append of keys and values to the cache.
#include "common.cuh"

// Rotates the queries and keys of [tokens, heads + 2 kv_heads, dim], after normalising them if
// there are weights, and appends keys and values to the cache [kv_heads, capacity, dim]. The first
// token is at *position. One warp per token and head.
template <typename T>
__device__ __forceinline__ void rope_body(
    const T* qkv, const float* cosines, const float* sines, const T* query_norm, const T* key_norm,
    const uint32_t* position, T* queries, T* keys, T* values, int tokens, int heads, int kv_heads,
    int dim, int capacity, float eps) {
    const int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32,
              all = heads + 2 * kv_heads;
    const int token = warp / all, head = warp % all;
    if (token >= tokens) return;
    const int place = *position + token;
    const T* from = qkv + size_t(warp) * dim;
    const int half = dim / 2;
    const bool is_query = head < heads, is_value = head >= heads + kv_heads;
    const int kv_head = is_value ? head - heads - kv_heads : head - heads;
    if (place >= capacity) return;
    T* to = is_query ? queries + (size_t(token) * heads + head) * dim
                     : (is_value ? values : keys) + (size_t(kv_head) * capacity + place) * dim;
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

#define ROPE(T, NAME)                                                                            \
    extern "C" __global__ void rope_##NAME(                                                      \
        const T* qkv, const float* cosines, const float* sines, const T* query_norm,             \
        const T* key_norm, const uint32_t* position, T* queries, T* keys, T* values, int tokens, \
        int heads, int kv_heads, int dim, int capacity, float eps) {                             \
        rope_body<T>(                                                                            \
            qkv, cosines, sines, query_norm, key_norm, position, queries, keys, values, tokens,  \
            heads, kv_heads, dim, capacity, eps);                                                \
    }
FOR_EACH_TYPE(ROPE)
