// Rows of a matrix for a convolution, which is then a product with its weights.
#include "common.cuh"

// The patch of channels-last `x` [batch, height, width, channels] below each output, as a row of
// [ky, kx, channels]; zeros in the padding. One block per output.
template <typename T>
__device__ __forceinline__ void conv_rows_body(
    const T* x, T* y, int height, int width, int channels, int kernel, int padding, int stride,
    int out_height, int out_width) {
    const int ox = blockIdx.x % out_width, oy = blockIdx.x / out_width % out_height,
              batch = blockIdx.x / (out_width * out_height), length = kernel * kernel * channels;
    const T* from = x + size_t(batch) * height * width * channels;
    T* to = y + size_t(blockIdx.x) * length;
    for (int i = threadIdx.x * WIDE<T>; i < length; i += blockDim.x * WIDE<T>) {
        const int place = i / channels, iy = oy * stride + place / kernel - padding,
                  ix = ox * stride + place % kernel - padding;
        const bool inside = iy >= 0 && iy < height && ix >= 0 && ix < width;
        const T* source = from + (size_t(iy) * width + ix) * channels + i % channels;
        *reinterpret_cast<uint4*>(to + i) =
            inside ? *reinterpret_cast<const uint4*>(source) : make_uint4(0, 0, 0, 0);
    }
}

// The square patches of planes `x` [batch, channels, height, width], as rows of [channels, y, x].
// One block per patch.
template <typename T>
__device__ __forceinline__ void patch_rows_body(
    const T* x, T* y, int height, int width, int channels, int patch) {
    const int across = width / patch, down = height / patch, ox = blockIdx.x % across,
              oy = blockIdx.x / across % down, batch = blockIdx.x / (across * down),
              length = channels * patch * patch;
    T* to = y + size_t(blockIdx.x) * length;
    for (int i = threadIdx.x * WIDE<T>; i < length; i += blockDim.x * WIDE<T>) {
        const int row = i / patch, channel = row / patch;
        const T* source =
            x + ((size_t(batch) * channels + channel) * height + oy * patch + row % patch) * width +
            ox * patch + i % patch;
        *reinterpret_cast<uint4*>(to + i) = *reinterpret_cast<const uint4*>(source);
    }
}

#define KERNELS(T, NAME)                                                                    \
    extern "C" __global__ void conv_rows_##NAME(                                            \
        const T* x, T* y, int height, int width, int channels, int kernel, int padding,     \
        int stride, int out_height, int out_width) {                                        \
        conv_rows_body<T>(                                                                  \
            x, y, height, width, channels, kernel, padding, stride, out_height, out_width); \
    }                                                                                       \
    extern "C" __global__ void patch_rows_##NAME(                                           \
        const T* x, T* y, int height, int width, int channels, int patch) {                 \
        patch_rows_body<T>(x, y, height, width, channels, patch);                           \
    }
FOR_EACH_TYPE(KERNELS)
