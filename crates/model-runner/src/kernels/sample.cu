// Greedy sampling on the device: the next token is chosen, recorded and fed back without the host.
#include "common.cuh"

// Advances the positions of the next tokens, and, for several sequences, their sum after them.
extern "C" __global__ void advance(uint32_t* positions, int sequences, int by) {
    for (int i = threadIdx.x; i < sequences; i += blockDim.x) positions[i] += by;
    if (sequences > 1 && threadIdx.x == 0) positions[sequences] += by * sequences;
}

// Chooses the largest of each sequence's `logits`, the lower index of equal ones. `chosen` is kept
// on the device, so that a captured graph continues without the host: of each sequence the last
// token, then the number of tokens, then of finished blocks, which identifies the last one. Stores
// the token in tokens[sequence][count], and the logits of the first sequence in history[count].
// `best` has a pair per block; blockIdx.y is the sequence.
template <typename T>
__device__ __forceinline__ void sample_body(
    const T* logits, uint32_t* chosen, uint32_t* tokens, T* history, uint2* best, int vocabulary,
    int max_tokens) {
    const int sequence = blockIdx.y, sequences = gridDim.y;
    logits += size_t(sequence) * vocabulary;
    best += size_t(sequence) * gridDim.x;
    uint32_t *latest = chosen + sequence, *count = latest + sequences, *ticket = count + sequences;
    __shared__ float values[32];
    __shared__ uint32_t indices[32];
    __shared__ bool last;
    const uint32_t place = min(*count, uint32_t(max_tokens - 1));
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    T* keep = history + size_t(place) * vocabulary;
    float value = -INFINITY;
    uint32_t index = 0xffffffffu;
    auto better = [](float a, uint32_t i, float b, uint32_t j) {
        return a > b || (a == b && i < j);
    };
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < vocabulary;
         i += gridDim.x * blockDim.x) {
        if (sequence == 0) keep[i] = logits[i];
        const float logit = to_float(logits[i]);
        if (better(logit, i, value, index)) value = logit, index = i;
    }
    auto reduce = [&]() {
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
            const float other = __shfl_xor_sync(0xffffffffu, value, offset);
            const uint32_t other_index = __shfl_xor_sync(0xffffffffu, index, offset);
            if (better(other, other_index, value, index)) value = other, index = other_index;
        }
        __syncthreads();
        if (lane == 0) values[warp] = value, indices[warp] = index;
        __syncthreads();
        value = lane < warps ? values[lane] : -INFINITY,
        index = lane < warps ? indices[lane] : 0xffffffffu;
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
            const float other = __shfl_xor_sync(0xffffffffu, value, offset);
            const uint32_t other_index = __shfl_xor_sync(0xffffffffu, index, offset);
            if (better(other, other_index, value, index)) value = other, index = other_index;
        }
    };
    reduce();
    if (threadIdx.x == 0) {
        best[blockIdx.x] = make_uint2(__float_as_uint(value), index);
        __threadfence();
        last = atomicAdd(ticket, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    value = -INFINITY, index = 0xffffffffu;
    for (int b = threadIdx.x; b < gridDim.x; b += blockDim.x) {
        const uint2 other = __ldcg(best + b);
        if (better(__uint_as_float(other.x), other.y, value, index))
            value = __uint_as_float(other.x), index = other.y;
    }
    reduce();
    if (threadIdx.x == 0) {
        // NaN logits have no largest value: token 0 is chosen, and the stored logits show them.
        index = index < vocabulary ? index : 0;
        *latest = index, *count = place + 1, *ticket = 0;
        tokens[size_t(sequence) * max_tokens + place] = index;
    }
}

#define KERNELS(T, NAME)                                                               \
    extern "C" __global__ void __launch_bounds__(512) sample_##NAME(                   \
        const T* logits, uint32_t* chosen, uint32_t* tokens, T* history, uint2* best,  \
        int vocabulary, int max_tokens) {                                              \
        sample_body<T>(logits, chosen, tokens, history, best, vocabulary, max_tokens); \
    }
FOR_EACH_TYPE(KERNELS)
