/* The simulated driver's memory with an address of its own: device memory, arrays, pools,
 * page-locked host memory and memory of other processes. */
#define _GNU_SOURCE
#include "driver.h"

#include <string.h>
#include <sys/mman.h>

/* --- device memory --- */

/* What an entry point allocates. */
struct request {
    const char *call;
    uint64_t size;
    enum kind kind;
    int arena; /* -1: that of the device */
};

/* Allocates in a context. Called with the lock held. */
static CUresult allocate_in(struct context *context, const struct request *request,
                            uint64_t *address) {
    CUresult result = scripted(request->call, request->size);
    if (result) return result;
    if (!request->size) return CUDA_ERROR_INVALID_VALUE;
    int device = context->device, pooled = request->kind == BLOCK_POOL;
    uint64_t size = request->size;
    result = pooled ? charge_pool(device, size) : charge(device, size);
    if (result) return result;
    uint64_t align = size < LARGE_ALIGN ? SMALL_ALIGN : LARGE_ALIGN;
    *address = take_addresses(request->arena < 0 ? device : request->arena, size, align);
    if (!*address) {
        if (pooled) discharge_pool(device, size);
        else discharge(device, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct context *owner = context->memory ? context->memory : context;
    add_block((struct block){*address, size, owner, device, request->kind});
    return CUDA_SUCCESS;
}

static CUresult allocate(struct request request, uint64_t *out) {
    CUresult result;
    uint64_t address = 0;
    lock_driver();
    struct context *context = current_context(&result);
    if (context && !out) result = CUDA_ERROR_INVALID_VALUE;
    if (!result) result = allocate_in(context, &request, &address);
    if (!result) *out = address;
    count_alloc(result);
    unlock_driver();
    return result;
}

static CUresult release(const char *call, uint64_t address) {
    if (!address) return CUDA_SUCCESS;
    lock_driver();
    CUresult result = scripted(call, 0);
    struct block *block = result ? NULL : find_block(address);
    if (block && (block->kind == BLOCK_DEVICE || block->kind == BLOCK_POOL)) drop_block(block);
    else if (!result) result = CUDA_ERROR_INVALID_VALUE;
    count_free(result);
    unlock_driver();
    return result;
}

/* Frees what only one entry point may free. */
static CUresult release_kind(const char *call, uint64_t address, enum kind kind, CUresult wrong) {
    lock_driver();
    CUresult result = scripted(call, 0);
    struct block *block = result ? NULL : find_block(address);
    if (block && block->kind == kind) drop_block(block);
    else if (!result) result = wrong;
    count_free(result);
    unlock_driver();
    return result;
}

EXPORT CUresult cuMemAlloc(CUdeviceptr_v1 *out, unsigned bytes) {
    uint64_t address;
    CUresult result =
        allocate((struct request){__func__, bytes, BLOCK_DEVICE, ARENA_V1}, out ? &address : NULL);
    if (!result) *out = (CUdeviceptr_v1)address;
    return result;
}
EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) {
    return allocate((struct request){__func__, bytes, BLOCK_DEVICE, -1}, out);
}
EXPORT CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned flags) {
    (void)flags;
    return allocate((struct request){__func__, bytes, BLOCK_DEVICE, -1}, out);
}
EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height,
                                   unsigned element) {
    if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    size_t padded, bytes;
    if (__builtin_add_overflow(width, 511, &padded)) return CUDA_ERROR_OUT_OF_MEMORY;
    padded &= ~(size_t)511;
    if (__builtin_mul_overflow(padded, height, &bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = allocate((struct request){__func__, bytes, BLOCK_DEVICE, -1}, out);
    if (!result) *pitch = padded;
    return result;
}
EXPORT CUresult cuMemAllocPitch(CUdeviceptr_v1 *out, unsigned *pitch, unsigned width,
                                unsigned height, unsigned element) {
    if (!pitch || !width || !height || width > UINT32_MAX - 511 ||
        (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t address, padded = (width + 511u) & ~511u;
    struct request request = {__func__, padded * height, BLOCK_DEVICE, ARENA_V1};
    CUresult result = allocate(request, out ? &address : NULL);
    if (!result) {
        *out = (CUdeviceptr_v1)address;
        *pitch = (unsigned)padded;
    }
    return result;
}
EXPORT CUresult cuMemFree(CUdeviceptr_v1 address) { return release(__func__, address); }
EXPORT CUresult cuMemFree_v2(CUdeviceptr address) { return release(__func__, address); }

EXPORT CUresult cuMemGetInfo_v2(size_t *available, size_t *total) {
    CUresult result;
    lock_driver();
    const struct context *context = current_context(&result);
    if (context) {
        const struct device *d = &devices[context->device];
        *available = d->capacity - d->allocated - kept_by_pool(context->device);
        *total = d->capacity;
    }
    unlock_driver();
    return result;
}
EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
    lock_driver();
    const struct block *block = find_block_around(address);
    if (block) {
        if (base) *base = block->address;
        if (size) *size = block->size;
    }
    unlock_driver();
    return block ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
EXPORT CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address) {
    if (!address_is_device(address)) return CUDA_ERROR_INVALID_VALUE;
    if (attribute == 9) *(int *)data = address_device(address); /* device ordinal */
    else if (attribute == 2) *(int *)data = 2;                  /* memory type: device */
    else return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

/* --- arrays: the handle is an address of the device --- */

struct array_descriptor {
    size_t width, height;
    int format;
    unsigned channels;
};

struct array_descriptor_3d {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};

static unsigned format_bytes(int format) {
    switch (format) {
    case 0x01: case 0x08: return 1; /* 8 bits, unsigned and signed */
    case 0x02: case 0x09: return 2; /* 16 bits */
    case 0x03: case 0x0a: return 4; /* 32 bits */
    case 0x10: return 2;            /* half */
    case 0x20: return 4;            /* float */
    default: return 0;
    }
}

/* The first version of the API. */
struct array_descriptor_v1 {
    unsigned width, height;
    int format;
    unsigned channels;
};

struct array_descriptor_3d_v1 {
    unsigned width, height, depth;
    int format;
    unsigned channels, flags;
};

static size_t at_least_1(size_t length) { return length ? length : 1; }
static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* An array and `levels` - 1 smaller ones, each of half the dimensions of the one before. */
static CUresult create_arrays(const char *call, uint64_t *out, enum kind kind, unsigned levels,
                              const struct array_descriptor_3d *wanted) {
    const size_t longest = 131072; /* whose cube still fits in 64 bits, with 16 bytes per element */
    unsigned element = format_bytes(wanted->format) * wanted->channels;
    int channels_fit = wanted->channels == 1 || wanted->channels == 2 || wanted->channels == 4;
    if (!element || !channels_fit || !wanted->width || wanted->width > longest ||
        wanted->height > longest || wanted->depth > longest)
        return CUDA_ERROR_INVALID_VALUE;
    enum { LAYERED = 1, CUBE = 4 };
    size_t width = wanted->width, height = at_least_1(wanted->height);
    size_t depth = at_least_1(wanted->depth);
    int layered = (wanted->flags & (LAYERED | CUBE)) != 0;
    uint64_t bytes = width * height * depth * element;
    while (--levels && larger(larger(width, height), layered ? 1 : depth) > 1) {
        width = at_least_1(width / 2), height = at_least_1(height / 2);
        if (!layered) depth = at_least_1(depth / 2);
        bytes += width * height * depth * element;
    }
    return allocate((struct request){call, bytes, kind, -1}, out);
}

static CUresult create_array(const char *call, uint64_t *out,
                             const struct array_descriptor_3d *wanted) {
    return create_arrays(call, out, BLOCK_ARRAY, 1, wanted);
}

EXPORT CUresult cuArrayCreate_v2(uint64_t *array, const struct array_descriptor *wanted) {
    if (!wanted) return CUDA_ERROR_INVALID_VALUE;
    struct array_descriptor_3d full = {wanted->width, wanted->height, 0, wanted->format,
                                       wanted->channels, 0};
    return create_array(__func__, array, &full);
}
EXPORT CUresult cuArray3DCreate_v2(uint64_t *array, const struct array_descriptor_3d *wanted) {
    return wanted ? create_array(__func__, array, wanted) : CUDA_ERROR_INVALID_VALUE;
}
EXPORT CUresult cuArrayCreate(uint64_t *array, const struct array_descriptor_v1 *wanted) {
    if (!wanted) return CUDA_ERROR_INVALID_VALUE;
    struct array_descriptor_3d full = {wanted->width, wanted->height, 0, wanted->format,
                                       wanted->channels, 0};
    return create_array(__func__, array, &full);
}
EXPORT CUresult cuArray3DCreate(uint64_t *array, const struct array_descriptor_3d_v1 *wanted) {
    if (!wanted) return CUDA_ERROR_INVALID_VALUE;
    struct array_descriptor_3d full = {wanted->width,  wanted->height,   wanted->depth,
                                       wanted->format, wanted->channels, wanted->flags};
    return create_array(__func__, array, &full);
}
EXPORT CUresult cuMipmappedArrayCreate(uint64_t *array, const struct array_descriptor_3d *wanted,
                                       unsigned levels) {
    if (!wanted || !levels) return CUDA_ERROR_INVALID_VALUE;
    return create_arrays(__func__, array, BLOCK_MIPMAPPED, levels, wanted);
}
EXPORT CUresult cuMipmappedArrayDestroy(uint64_t array) {
    return release_kind(__func__, array, BLOCK_MIPMAPPED, CUDA_ERROR_INVALID_VALUE);
}
EXPORT CUresult cuArrayDestroy(uint64_t array) {
    return release_kind(__func__, array, BLOCK_ARRAY, CUDA_ERROR_INVALID_VALUE);
}

/* --- pools: each device has one --- */

static CUresult allocate_pooled(const char *call, CUdeviceptr *out, size_t bytes) {
    return allocate((struct request){call, bytes, BLOCK_POOL, -1}, out);
}

/* The device whose pool this is, -1 for none. */
static int pool_device(const struct pool *pool) {
    for (int device = 0; device < device_count; device++)
        if (pool == &devices[device].pool) return device;
    return -1;
}

/* Only from the pool of the context's device. */
static CUresult allocate_from(const char *call, CUdeviceptr *out, size_t bytes, CUmemoryPool pool) {
    CUresult result;
    uint64_t address = 0;
    lock_driver();
    struct context *context = current_context(&result);
    if (context && (!out || pool_device(pool) != context->device)) result = CUDA_ERROR_INVALID_VALUE;
    struct request request = {call, bytes, BLOCK_POOL, -1};
    if (!result) result = allocate_in(context, &request, &address);
    if (!result) *out = address;
    count_alloc(result);
    unlock_driver();
    return result;
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream) {
    (void)stream;
    return allocate_pooled(__func__, out, bytes);
}
EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t bytes, CUstream stream) {
    (void)stream;
    return allocate_pooled(__func__, out, bytes);
}
EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool pool,
                                        CUstream stream) {
    (void)stream;
    return allocate_from(__func__, out, bytes, pool);
}
EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t bytes, CUmemoryPool pool,
                                             CUstream stream) {
    (void)stream;
    return allocate_from(__func__, out, bytes, pool);
}
EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
    (void)stream;
    return release(__func__, address);
}
EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
    (void)stream;
    return release(__func__, address);
}

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    configure();
    if (device < 0 || device >= device_count) return CUDA_ERROR_INVALID_DEVICE;
    *pool = &devices[device].pool;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    return cuDeviceGetDefaultMemPool(pool, device);
}

enum {
    POOL_REUSE_FIRST = 1, /* three settings, each an int; everything behind them has 64 bits */
    POOL_REUSE_LAST = 3,
    POOL_RELEASE_THRESHOLD = 4,
    POOL_RESERVED = 5,
    POOL_RESERVED_HIGH = 6,
    POOL_USED = 7,
    POOL_USED_HIGH = 8,
};

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
    CUresult result = CUDA_SUCCESS;
    lock_driver();
    if (pool_device(pool) < 0 || !value) result = CUDA_ERROR_INVALID_VALUE;
    else if (attribute >= POOL_REUSE_FIRST && attribute <= POOL_REUSE_LAST)
        *(int *)value = pool->reuse[attribute - POOL_REUSE_FIRST];
    else if (attribute == POOL_RELEASE_THRESHOLD) *(uint64_t *)value = pool->threshold;
    else if (attribute == POOL_RESERVED) *(uint64_t *)value = pool->reserved;
    else if (attribute == POOL_RESERVED_HIGH) *(uint64_t *)value = pool->reserved_high;
    else if (attribute == POOL_USED) *(uint64_t *)value = pool->used;
    else if (attribute == POOL_USED_HIGH) *(uint64_t *)value = pool->used_high;
    else result = CUDA_ERROR_INVALID_VALUE;
    unlock_driver();
    return result;
}
/* The high-water marks can only be reset. */
EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    CUresult result = CUDA_SUCCESS;
    lock_driver();
    if (pool_device(pool) < 0 || !value) result = CUDA_ERROR_INVALID_VALUE;
    else if (attribute >= POOL_REUSE_FIRST && attribute <= POOL_REUSE_LAST)
        pool->reuse[attribute - POOL_REUSE_FIRST] = *(int *)value;
    else if (attribute == POOL_RELEASE_THRESHOLD) pool->threshold = *(uint64_t *)value;
    else if (attribute == POOL_RESERVED_HIGH && !*(uint64_t *)value)
        pool->reserved_high = pool->reserved;
    else if (attribute == POOL_USED_HIGH && !*(uint64_t *)value) pool->used_high = pool->used;
    else result = CUDA_ERROR_INVALID_VALUE;
    unlock_driver();
    return result;
}
EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    lock_driver();
    int known = pool_device(pool) >= 0;
    if (known) trim_pool(pool, keep);
    unlock_driver();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- page-locked host memory: belongs to the process, not to a context --- */

static CUresult allocate_host(const char *call, void **out, size_t bytes) {
    CUresult result;
    lock_driver();
    if (current_context(&result)) result = scripted(call, bytes);
    if (!result && (!out || !bytes)) result = CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (pages == MAP_FAILED) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        } else {
            *out = pages;
            add_block((struct block){.address = (uint64_t)pages, .size = bytes, .kind = BLOCK_HOST});
        }
    }
    count_alloc(result);
    unlock_driver();
    return result;
}

static CUresult register_host(const char *call, void *pointer, size_t bytes) {
    CUresult result;
    uint64_t address = (uint64_t)pointer;
    lock_driver();
    if (current_context(&result)) result = scripted(call, bytes);
    if (!result && (!pointer || !bytes)) result = CUDA_ERROR_INVALID_VALUE;
    if (!result && find_block(address)) result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    if (!result)
        add_block((struct block){.address = address, .size = bytes, .kind = BLOCK_REGISTERED});
    count_alloc(result);
    unlock_driver();
    return result;
}

EXPORT CUresult cuMemAllocHost(void **out, unsigned bytes) {
    return allocate_host(__func__, out, bytes);
}
EXPORT CUresult cuMemAllocHost_v2(void **out, size_t bytes) {
    return allocate_host(__func__, out, bytes);
}
EXPORT CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
    (void)flags;
    return allocate_host(__func__, out, bytes);
}
EXPORT CUresult cuMemFreeHost(void *pointer) {
    lock_driver();
    CUresult result = scripted(__func__, 0);
    struct block *block = result ? NULL : find_block((uint64_t)pointer);
    if (block && block->kind == BLOCK_HOST) {
        munmap(pointer, block->size);
        drop_block(block);
    } else if (!result) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    count_free(result);
    unlock_driver();
    return result;
}
EXPORT CUresult cuMemHostRegister(void *pointer, size_t bytes, unsigned flags) {
    (void)flags;
    return register_host(__func__, pointer, bytes);
}
EXPORT CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags) {
    (void)flags;
    return register_host(__func__, pointer, bytes);
}
EXPORT CUresult cuMemHostUnregister(void *pointer) {
    return release_kind(__func__, (uint64_t)pointer, BLOCK_REGISTERED,
                        CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

/* --- memory of other processes: an address, and no bytes of this process --- */

struct ipc_handle {
    char bytes[64];
};

static CUresult import(const char *call, uint64_t *out, enum kind kind) {
    CUresult result;
    lock_driver();
    if (current_context(&result)) result = scripted(call, 0);
    if (!result && !out) result = CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        uint64_t address = take_addresses(ARENA_IMPORTED, LARGE_ALIGN, LARGE_ALIGN);
        if (!address) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        } else {
            *out = address;
            add_block((struct block){.address = address, .size = LARGE_ALIGN, .kind = kind});
        }
    }
    count_alloc(result);
    unlock_driver();
    return result;
}

EXPORT CUresult cuIpcGetMemHandle(struct ipc_handle *handle, CUdeviceptr address) {
    lock_driver();
    const struct block *block = find_block_around(address);
    unlock_driver();
    if (!block || !handle) return CUDA_ERROR_INVALID_VALUE;
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &address, sizeof address);
    return CUDA_SUCCESS;
}
EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr *out, struct ipc_handle handle, unsigned flags) {
    (void)handle, (void)flags;
    return import(__func__, out, BLOCK_IPC);
}
EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, struct ipc_handle handle, unsigned flags) {
    (void)handle, (void)flags;
    return import(__func__, out, BLOCK_IPC);
}
EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
    return release_kind(__func__, address, BLOCK_IPC, CUDA_ERROR_INVALID_VALUE);
}
EXPORT CUresult cuImportExternalMemory(uint64_t *out, const void *description) {
    (void)description;
    return import(__func__, out, BLOCK_EXTERNAL);
}
EXPORT CUresult cuDestroyExternalMemory(uint64_t memory) {
    return release_kind(__func__, memory, BLOCK_EXTERNAL, CUDA_ERROR_INVALID_VALUE);
}
