// Products by a group of four warps, with operands in shared memory: for sm_90a only.
//
// An operand is rows of 64 values along k, 128 bytes each, in tiles of `swizzled<8>`, which is the
// layout "128-byte swizzle"; a tile starts at a multiple of 1,024 bytes.
#pragma once
#include "mma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Orders copies by this thread before reads by the tensor cores.
__device__ __forceinline__ void group_fence_copies() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void group_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void group_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void group_wait() {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// Descriptor of an operand: its address, 1,024 bytes from eight rows to the next, the swizzle. If
// the operand's rows are k, `apart` is the distance in bytes from 64 columns to the next 64.
__device__ __forceinline__ uint64_t group_operand(uint32_t address, uint32_t apart = 16) {
    return uint64_t(address >> 4 & 0x3fff) | uint64_t(apart >> 4) << 16 |
           uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

// d += a b of 64 x 16 by 16 x 128. Lane l of warp w holds rows 16 w + l / 4 and the one eight
// further, columns 8 n + 2 (l % 4) and the next: d[n] as of `multiply`.
#define GROUP_MULTIPLY_128(T, TYPE)                                                                \
    template <>                                                                                    \
    __device__ __forceinline__ void group_multiply<T>(float (&d)[16][4], uint64_t a, uint64_t b) { \
        asm volatile(                                                                              \
            "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE                           \
            " "                                                                                    \
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "    \
            "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "     \
            "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "     \
            "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "              \
            "%64, %65, 1, 1, 1, 0, 0;"                                                             \
            : FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5), FOUR(6), FOUR(7), FOUR(8),     \
              FOUR(9), FOUR(10), FOUR(11), FOUR(12), FOUR(13), FOUR(14), FOUR(15)                  \
            : "l"(a), "l"(b));                                                                     \
    }
#define FOUR(N) "+f"(d[N][0]), "+f"(d[N][1]), "+f"(d[N][2]), "+f"(d[N][3])
template <typename T>
__device__ __forceinline__ void group_multiply(float (&d)[16][4], uint64_t a, uint64_t b);
GROUP_MULTIPLY_128(bf16, "bf16")
GROUP_MULTIPLY_128(f16, "f16")

// d = a b of 64 x 16 by 16 x 64 if `first`, else d += a b.
template <typename T>
__device__ __forceinline__ void group_multiply_64(
    float (&d)[8][4], uint64_t a, uint64_t b, bool first);
#define GROUP_MULTIPLY_64(T, TYPE)                                                               \
    template <>                                                                                  \
    __device__ __forceinline__ void group_multiply_64<T>(                                        \
        float (&d)[8][4], uint64_t a, uint64_t b, bool first) {                                  \
        asm volatile(                                                                            \
            "{.reg .pred p; setp.ne.b32 p, %34, 0; "                                             \
            "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE                          \
            " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
            "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "            \
            "%32, %33, p, 1, 1, 0, 0;}"                                                          \
            : FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5), FOUR(6), FOUR(7)             \
            : "l"(a), "l"(b), "r"(int(!first)));                                                 \
    }
GROUP_MULTIPLY_64(bf16, "bf16")
GROUP_MULTIPLY_64(f16, "f16")

// d += a b of 64 x 16 in registers, as of `multiply`, by 16 x 128 or 16 x 64 whose rows are k.
template <typename T>
__device__ __forceinline__ void group_multiply_rows(
    float (&d)[16][4], const uint32_t (&a)[4], uint64_t b);
template <typename T>
__device__ __forceinline__ void group_multiply_rows(
    float (&d)[8][4], const uint32_t (&a)[4], uint64_t b);
#define GROUP_MULTIPLY_ROWS(T, TYPE)                                                             \
    template <>                                                                                  \
    __device__ __forceinline__ void group_multiply_rows<T>(                                      \
        float (&d)[16][4], const uint32_t (&a)[4], uint64_t b) {                                 \
        asm volatile(                                                                            \
            "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE                         \
            " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
            "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "   \
            "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "   \
            "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "            \
            "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;"                                             \
            : FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5), FOUR(6), FOUR(7), FOUR(8),   \
              FOUR(9), FOUR(10), FOUR(11), FOUR(12), FOUR(13), FOUR(14), FOUR(15)                \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                               \
    }                                                                                            \
    template <>                                                                                  \
    __device__ __forceinline__ void group_multiply_rows<T>(                                      \
        float (&d)[8][4], const uint32_t (&a)[4], uint64_t b) {                                  \
        asm volatile(                                                                            \
            "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE                          \
            " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
            "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "            \
            "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;"                                             \
            : FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5), FOUR(6), FOUR(7)             \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                               \
    }
GROUP_MULTIPLY_ROWS(bf16, "bf16")
GROUP_MULTIPLY_ROWS(f16, "f16")
#undef FOUR
#else
__device__ __forceinline__ void group_fence_copies() {}
#endif
