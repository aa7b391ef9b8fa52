/* What the simulated libraries share: types of the public CUDA API as far as they are used here,
 * and the names of the error codes. Declared from the API's documentation; nothing is copied. */
#ifndef CUDASIM_H
#define CUDASIM_H

#include <stddef.h>
#include <stdint.h>

/* Everything else stays inside its library. */
#define EXPORT __attribute__((visibility("default")))
#define MAX_DEVICES 16

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef uint32_t CUdeviceptr_v1; /* the API's first version */
typedef struct context *CUcontext;
typedef void *CUstream;
typedef void *CUevent;
typedef struct pool *CUmemoryPool;
typedef uint64_t CUmemHandle;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_UNKNOWN = 999,
};

/* Device addresses: each device has 4 TiB of them. They are never mapped on the host, so touching
 * one by mistake faults at once, and lie where Linux puts neither programs nor libraries. */
#define DEVICE_BASE 0x100000000000ull
#define DEVICE_SHIFT 42

/* What libnvidia-ml counts for a context that has allocated. */
#define CONTEXT_BYTES (256ull << 20)

static inline int address_is_device(uint64_t address) {
    return address >= DEVICE_BASE &&
           address < DEVICE_BASE + ((uint64_t)MAX_DEVICES << DEVICE_SHIFT);
}

static inline int address_device(uint64_t address) {
    return (int)((address - DEVICE_BASE) >> DEVICE_SHIFT);
}

#endif
