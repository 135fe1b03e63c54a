// Tensor-core pieces: asynchronous copies, matrix loads, one 16 x 8 x 16 product. For 16-bit types,
// from sm_80 on.
//
// Shared tiles are rows of 16-byte chunks; chunk c of row r is at c ^ (r & 7), so that neither
// copies nor matrix loads have bank conflicts.
#pragma once
#include "common.cuh"

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes, or writes zeros if `inside` is false.
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, bool inside) {
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0));
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;"); }
template <int PENDING>
__device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING));
}

__device__ __forceinline__ void load_matrices(uint32_t (&out)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address));
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&out)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(address));
}

// d += a b, with a 16 x 16 by rows and b 16 x 8 by columns. Lane l holds rows l / 4 and l / 4 + 8,
// columns 2 (l % 4) and the next.
template <typename T>
__device__ __forceinline__ void multiply(
    float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <>
__device__ __forceinline__ void multiply<bf16>(
    float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <>
__device__ __forceinline__ void multiply<f16>(
    float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Byte offset of chunk `chunk` of row `row` in a tile with rows of CHUNKS chunks (a power of two, 8
// or more).
template <int CHUNKS>
__device__ __forceinline__ uint32_t swizzled(int row, int chunk) {
    return (row * CHUNKS + (chunk ^ (row & 7))) * 16;
}
