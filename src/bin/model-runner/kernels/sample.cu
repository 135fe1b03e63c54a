// Greedy sampling on the device: the next token is chosen, recorded and fed back without the host.
#include "common.cuh"

// The chosen tokens so far; kept on the device, so that a captured graph continues without the
// host.
struct Chosen {
    uint32_t last, count;
    // Finished blocks: identifies the last one.
    uint32_t ticket;
};

// Advances the position of the next token.
extern "C" __global__ void advance(uint32_t* position, int by) { *position += by; }

// Chooses the largest of `logits`, the lower index of equal ones; stores the logits in
// history[count] and the token in tokens[count]. `best` has a pair per block.
template <typename T>
__device__ __forceinline__ void sample_body(
    const T* logits, Chosen* chosen, uint32_t* tokens, T* history, uint2* best, int vocabulary,
    int max_tokens) {
    __shared__ float values[32];
    __shared__ uint32_t indices[32];
    __shared__ bool last;
    const uint32_t place = min(chosen->count, uint32_t(max_tokens - 1));
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    T* keep = history + size_t(place) * vocabulary;
    float value = -INFINITY;
    uint32_t index = 0xffffffffu;
    auto better = [](float a, uint32_t i, float b, uint32_t j) {
        return a > b || (a == b && i < j);
    };
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < vocabulary;
         i += gridDim.x * blockDim.x) {
        keep[i] = logits[i];
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
        last = atomicAdd(&chosen->ticket, 1) == gridDim.x - 1;
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
        chosen->last = index, chosen->count = place + 1, chosen->ticket = 0;
        tokens[place] = index;
    }
}

#define KERNELS(T, NAME)                                                               \
    extern "C" __global__ void __launch_bounds__(512) sample_##NAME(                   \
        const T* logits, Chosen* chosen, uint32_t* tokens, T* history, uint2* best,    \
        int vocabulary, int max_tokens) {                                              \
        sample_body<T>(logits, chosen, tokens, history, best, vocabulary, max_tokens); \
    }
FOR_EACH_TYPE(KERNELS)
