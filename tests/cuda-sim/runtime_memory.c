/* The simulated runtime's memory calls, handed on to the driver's exported functions as the real one
 * does, so that each allocation passes libcuda exactly once. Copies to the device are dropped, copies
 * from it are zeros. */
#define _GNU_SOURCE
#include "runtime.h"

#include <string.h>

struct ipc_handle { char bytes[64]; };
struct array_descriptor_3d {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};

extern CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
extern CUresult cuMemAllocPitch_v2(CUdeviceptr *, size_t *, size_t, size_t, unsigned);
extern CUresult cuMemFree_v2(CUdeviceptr);
extern CUresult cuMemAllocManaged(CUdeviceptr *, size_t, unsigned);
extern CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream);
extern CUresult cuMemAllocFromPoolAsync(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
extern CUresult cuMemFreeAsync(CUdeviceptr, CUstream);
extern CUresult cuMemAllocAsync_ptsz(CUdeviceptr *, size_t, CUstream);
extern CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
extern CUresult cuMemFreeAsync_ptsz(CUdeviceptr, CUstream);
extern CUresult cuMemHostAlloc(void **, size_t, unsigned);
extern CUresult cuMemFreeHost(void *);
extern CUresult cuMemHostRegister_v2(void *, size_t, unsigned);
extern CUresult cuMemHostUnregister(void *);
extern CUresult cuMemGetInfo_v2(size_t *, size_t *);
extern CUresult cuArray3DCreate_v2(uint64_t *, const struct array_descriptor_3d *);
extern CUresult cuArrayDestroy(uint64_t);
extern CUresult cuMipmappedArrayCreate(uint64_t *, const struct array_descriptor_3d *, unsigned);
extern CUresult cuMipmappedArrayDestroy(uint64_t);
extern CUresult cuImportExternalMemory(uint64_t *, const void *);
extern CUresult cuDestroyExternalMemory(uint64_t);
extern CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *, struct ipc_handle, unsigned);
extern CUresult cuIpcCloseMemHandle(CUdeviceptr);
extern CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *, CUdevice);
extern CUresult cuMemPoolGetAttribute(CUmemoryPool, int, void *);
extern CUresult cuMemPoolSetAttribute(CUmemoryPool, int, void *);
extern CUresult cuMemPoolTrimTo(CUmemoryPool, size_t);

/* --- memory --- */

EXPORT cudaError_t cudaMalloc(void **pointer, size_t bytes) {
    *pointer = NULL;
    if (!bytes) return 0;
    cudaError_t error = ready();
    return error ? error : fail(cuMemAlloc_v2((CUdeviceptr *)pointer, bytes));
}
EXPORT cudaError_t cudaFree(void *pointer) {
    cudaError_t error = ready();
    if (error || !pointer) return error;
    return fail(cuMemFree_v2((CUdeviceptr)pointer));
}
EXPORT cudaError_t cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height) {
    cudaError_t error = ready();
    return error ? error : fail(cuMemAllocPitch_v2((CUdeviceptr *)pointer, pitch, width, height, 4));
}
EXPORT cudaError_t cudaMallocManaged(void **pointer, size_t bytes, unsigned flags) {
    cudaError_t error = ready();
    return error ? error : fail(cuMemAllocManaged((CUdeviceptr *)pointer, bytes, flags));
}
EXPORT cudaError_t cudaMallocAsync(void **pointer, size_t bytes, void *stream) {
    cudaError_t error = ready();
    return error ? error : fail(cuMemAllocAsync((CUdeviceptr *)pointer, bytes, stream));
}
EXPORT cudaError_t cudaMallocFromPoolAsync(void **pointer, size_t bytes, CUmemoryPool pool,
                                           void *stream) {
    cudaError_t error = ready();
    if (error) return error;
    return fail(cuMemAllocFromPoolAsync((CUdeviceptr *)pointer, bytes, pool, stream));
}
EXPORT cudaError_t cudaFreeAsync(void *pointer, void *stream) {
    return fail(cuMemFreeAsync((CUdeviceptr)pointer, stream));
}
EXPORT cudaError_t cudaMallocAsync_ptsz(void **pointer, size_t bytes, void *stream) {
    cudaError_t error = ready();
    return error ? error : fail(cuMemAllocAsync_ptsz((CUdeviceptr *)pointer, bytes, stream));
}
EXPORT cudaError_t cudaMallocFromPoolAsync_ptsz(void **pointer, size_t bytes, CUmemoryPool pool,
                                                void *stream) {
    cudaError_t error = ready();
    if (error) return error;
    return fail(cuMemAllocFromPoolAsync_ptsz((CUdeviceptr *)pointer, bytes, pool, stream));
}
EXPORT cudaError_t cudaFreeAsync_ptsz(void *pointer, void *stream) {
    return fail(cuMemFreeAsync_ptsz((CUdeviceptr)pointer, stream));
}
EXPORT cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    cudaError_t error = ready();
    *pointer = NULL;
    return error || !bytes ? error : fail(cuMemHostAlloc(pointer, bytes, flags));
}
EXPORT cudaError_t cudaMallocHost(void **pointer, size_t bytes) {
    return cudaHostAlloc(pointer, bytes, 0);
}
EXPORT cudaError_t cudaFreeHost(void *pointer) {
    return pointer ? fail(cuMemFreeHost(pointer)) : 0;
}
EXPORT cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned flags) {
    cudaError_t error = ready();
    return error ? error : fail(cuMemHostRegister_v2(pointer, bytes, flags));
}
EXPORT cudaError_t cudaHostUnregister(void *pointer) { return fail(cuMemHostUnregister(pointer)); }
EXPORT cudaError_t cudaIpcOpenMemHandle(void **pointer, struct ipc_handle handle, unsigned flags) {
    cudaError_t error = ready();
    return error ? error : fail(cuIpcOpenMemHandle_v2((CUdeviceptr *)pointer, handle, flags));
}
EXPORT cudaError_t cudaIpcCloseMemHandle(void *pointer) {
    return fail(cuIpcCloseMemHandle((CUdeviceptr)pointer));
}
EXPORT cudaError_t cudaImportExternalMemory(uint64_t *memory, const void *description) {
    cudaError_t error = ready();
    return error ? error : fail(cuImportExternalMemory(memory, description));
}
EXPORT cudaError_t cudaDestroyExternalMemory(uint64_t memory) {
    return fail(cuDestroyExternalMemory(memory));
}
EXPORT cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
    cudaError_t error = ready();
    return error ? error : fail(cuMemGetInfo_v2(free_bytes, total));
}
EXPORT cudaError_t cudaDeviceGetDefaultMemPool(CUmemoryPool *pool, int device) {
    return fail(cuDeviceGetDefaultMemPool(pool, device));
}
EXPORT cudaError_t cudaMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
    return fail(cuMemPoolGetAttribute(pool, attribute, value));
}
EXPORT cudaError_t cudaMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    return fail(cuMemPoolSetAttribute(pool, attribute, value));
}
EXPORT cudaError_t cudaMemPoolSetAccess(CUmemoryPool pool, const void *access, size_t count) {
    (void)pool, (void)access, (void)count;
    return 0;
}
EXPORT cudaError_t cudaMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    return fail(cuMemPoolTrimTo(pool, keep));
}
EXPORT cudaError_t cudaDeviceGetGraphMemAttribute(int device, int attribute, void *value) {
    (void)device, (void)attribute;
    *(uint64_t *)value = 0;
    return 0;
}

/* --- pitched memory and arrays --- */

struct extent { size_t width, height, depth; };
struct pitched_pointer { void *pointer; size_t pitch, width, height; };
struct channels { int bits[4], kind; }; /* bits of each; kind as in `cudaChannelFormatKind` */

EXPORT cudaError_t cudaMalloc3D(struct pitched_pointer *out, struct extent extent) {
    *out = (struct pitched_pointer){NULL, 0, extent.width, extent.height};
    return cudaMallocPitch(&out->pointer, &out->pitch, extent.width, extent.height * extent.depth);
}

/* `CUarray_format` of signed integers, unsigned ones and floating point; 0 if there is none. */
static int array_format(const struct channels *channels) {
    switch (channels->kind << 8 | channels->bits[0]) {
    case 0x008: return 0x08;
    case 0x010: return 0x09;
    case 0x020: return 0x0a;
    case 0x108: return 0x01;
    case 0x110: return 0x02;
    case 0x120: return 0x03;
    case 0x210: return 0x10;
    case 0x220: return 0x20;
    default: return 0;
    }
}
static struct array_descriptor_3d array_descriptor(const struct channels *channels,
                                                   struct extent extent, unsigned flags) {
    struct array_descriptor_3d wanted = {extent.width, extent.height, extent.depth,
                                         array_format(channels), 0, flags};
    for (int i = 0; i < 4; i++) wanted.channels += channels->bits[i] != 0;
    return wanted;
}
EXPORT cudaError_t cudaMalloc3DArray(uint64_t *array, const struct channels *channels,
                                     struct extent extent, unsigned flags) {
    struct array_descriptor_3d wanted = array_descriptor(channels, extent, flags);
    cudaError_t error = ready();
    return error ? error : fail(cuArray3DCreate_v2(array, &wanted));
}
EXPORT cudaError_t cudaMallocArray(uint64_t *array, const struct channels *channels, size_t width,
                                   size_t height, unsigned flags) {
    return cudaMalloc3DArray(array, channels, (struct extent){width, height, 0}, flags);
}
EXPORT cudaError_t cudaMallocMipmappedArray(uint64_t *array, const struct channels *channels,
                                            struct extent extent, unsigned levels, unsigned flags) {
    struct array_descriptor_3d wanted = array_descriptor(channels, extent, flags);
    cudaError_t error = ready();
    return error ? error : fail(cuMipmappedArrayCreate(array, &wanted, levels));
}
EXPORT cudaError_t cudaFreeMipmappedArray(uint64_t array) {
    return array ? fail(cuMipmappedArrayDestroy(array)) : 0;
}
EXPORT cudaError_t cudaFreeArray(uint64_t array) {
    return array ? fail(cuArrayDestroy(array)) : 0;
}

/* --- addresses and copies --- */

/* `cudaPointerAttributes`. */
struct pointer_attributes {
    int type, device;
    void *on_device, *on_host;
#if CUDA_MAJOR > 12
    long reserved[8];
#endif
};

EXPORT cudaError_t cudaPointerGetAttributes(struct pointer_attributes *attributes, const void *p) {
    memset(attributes, 0, sizeof *attributes);
    if (address_is_device((uint64_t)p)) {
        attributes->type = 2;
        attributes->device = address_device((uint64_t)p);
        attributes->on_device = (void *)p;
    }
    return 0;
}

/* Direction as the API counts it; 4: find out by the addresses. A copy from the device is zeros. */
static void copy(void *to, const void *from, size_t bytes) {
    if (address_is_device((uint64_t)to)) return;
    if (address_is_device((uint64_t)from)) memset(to, 0, bytes);
    else memmove(to, from, bytes);
}
EXPORT cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, int direction) {
    (void)direction;
    copy(to, from, bytes);
    return 0;
}
EXPORT cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int direction,
                                   void *stream) {
    (void)direction, (void)stream;
    copy(to, from, bytes);
    return 0;
}
EXPORT cudaError_t cudaMemcpyPeerAsync(void) { return 0; }
EXPORT cudaError_t cudaMemcpyToSymbol(void) { return 0; }
EXPORT cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    if (!address_is_device((uint64_t)to)) memset(to, value, bytes);
    return 0;
}
EXPORT cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, void *stream) {
    (void)stream;
    return cudaMemset(to, value, bytes);
}
