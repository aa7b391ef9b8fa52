/* The simulated runtime, libcudart.so.12 and .13: devices, errors, kernels. Kernels launch and do
 * nothing. What torch imports beyond this runtime is a generated stub that answers
 * cudaErrorNotSupported. */
#define _GNU_SOURCE
#include "runtime.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

extern CUresult cuInit(unsigned);
extern CUresult cuDeviceGetCount(int *);
extern CUresult cuDeviceTotalMem_v2(size_t *, CUdevice);
extern CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
extern CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned *, int *);
extern CUresult cuDevicePrimaryCtxRelease_v2(CUdevice);
extern CUresult cuDevicePrimaryCtxReset(CUdevice);
extern CUresult cuCtxSetCurrent(CUcontext);
extern CUresult cuGetProcAddress_v2(const char *, void **, int, uint64_t, int *);
extern CUresult cuDeviceGetAttribute(int *, int, CUdevice);

_Thread_local int device_now;
static _Thread_local int bound = -1;            /* the device whose context is current */
static _Thread_local unsigned bound_generation; /* and which one of its contexts */
static _Thread_local cudaError_t last_error;

cudaError_t fail(cudaError_t error) {
    if (error) last_error = error;
    return error;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int retained[MAX_DEVICES];
static CUcontext primaries[MAX_DEVICES];
static _Atomic unsigned generations[MAX_DEVICES]; /* how often it was retained */

/* The primary context of a device, retained once per process and again after a reset. */
static CUresult primary_context(CUcontext *context, int device) {
    int active = 0;
    pthread_mutex_lock(&lock);
    CUresult result = cuDevicePrimaryCtxGetState(device, NULL, &active);
    if (retained[device] && !active) cuDevicePrimaryCtxRelease_v2(device);
    if (!retained[device] || !active) {
        result = cuDevicePrimaryCtxRetain(&primaries[device], device);
        generations[device]++;
    }
    retained[device] = !result;
    *context = primaries[device];
    pthread_mutex_unlock(&lock);
    return result;
}

cudaError_t ready(void) {
    int active = 0;
    CUresult result = cuInit(0);
    if (!result) result = cuDevicePrimaryCtxGetState(device_now, NULL, &active);
    unsigned generation = generations[device_now];
    if (!result && active && bound == device_now && bound_generation == generation) return 0;
    CUcontext context;
    if (!result) result = primary_context(&context, device_now);
    if (!result) result = cuCtxSetCurrent(context);
    if (!result) {
        bound = device_now;
        bound_generation = generations[device_now];
    }
    return fail(result);
}

/* --- registration of kernels --- */

static int registration;
EXPORT void **__cudaRegisterFatBinary(void *binary) { (void)binary; return (void **)&registration; }
EXPORT void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
EXPORT void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
EXPORT int __cudaRegisterFunction(void) { return 0; }
EXPORT int __cudaRegisterVar(void) { return 0; }
EXPORT unsigned __cudaPushCallConfiguration(void) { return 0; }
EXPORT cudaError_t __cudaPopCallConfiguration(void) { return 0; }
EXPORT cudaError_t __cudaGetKernel(void **kernel, const void *entry) {
    *kernel = (void *)(uintptr_t)entry;
    return 0;
}
EXPORT cudaError_t __cudaLaunchKernel(void) { return 0; }
EXPORT cudaError_t cudaLaunchKernel(void) { return 0; }
EXPORT cudaError_t cudaLaunchKernelExC(void) { return 0; }
EXPORT cudaError_t cudaLaunchCooperativeKernel(void) { return 0; }

/* --- devices --- */

EXPORT cudaError_t cudaGetDeviceCount(int *count) {
    CUresult result = cuInit(0);
    if (result) {
        *count = 0;
        return fail(result);
    }
    return cuDeviceGetCount(count);
}
EXPORT cudaError_t cudaGetDevice(int *device) { *device = device_now; return 0; }
EXPORT cudaError_t cudaSetDevice(int device) {
    int count = 0;
    cudaGetDeviceCount(&count);
    if (device < 0 || device >= count) return fail(CUDA_ERROR_INVALID_DEVICE);
    device_now = device;
    return ready();
}
EXPORT cudaError_t cudaDeviceSynchronize(void) { return ready(); }
EXPORT cudaError_t cudaDeviceReset(void) { return fail(cuDevicePrimaryCtxReset(device_now)); }
EXPORT cudaError_t cudaDriverGetVersion(int *version) { *version = 13020; return 0; }
EXPORT cudaError_t cudaRuntimeGetVersion(int *version) { *version = RUNTIME_VERSION; return 0; }
EXPORT cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int device) {
    return cuDeviceGetAttribute(value, attribute, device);
}
EXPORT cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device) {
    snprintf(text, length, "0000:%02x:00.0", device + 1);
    return 0;
}
EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return 0;
}
EXPORT cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    (void)device, (void)peer;
    *can = 0;
    return 0;
}

/* Byte offsets of the fields of `cudaDeviceProp` that torch reads. */
enum {
    PROP_UUID = 256, PROP_TOTAL = 288, PROP_SHARED_BLOCK = 296, PROP_REGS = 304, PROP_WARP = 308,
    PROP_THREADS_BLOCK = 320, PROP_DIM = 324, PROP_GRID = 336, PROP_MAJOR = 360,
    PROP_TEXTURE = 368,
#if CUDA_MAJOR == 12
    PROP_SIZE = 1032, PROP_SM = 388, PROP_CONCURRENT = 576, PROP_BUS = 584, PROP_L2 = 616,
    PROP_THREADS_SM = 624, PROP_SHARED_SM = 640, PROP_REGS_SM = 648, PROP_SHARED_OPTIN = 696,
    PROP_BLOCKS_SM = 712, PROP_POOLS = 744,
#else
    PROP_SIZE = 1008, PROP_SM = 384, PROP_CONCURRENT = 560, PROP_BUS = 568, PROP_L2 = 596,
    PROP_THREADS_SM = 604, PROP_SHARED_SM = 624, PROP_REGS_SM = 632, PROP_SHARED_OPTIN = 672,
    PROP_BLOCKS_SM = 688, PROP_POOLS = 720,
#endif
};

static void put32(unsigned char *p, int offset, int value) { memcpy(p + offset, &value, 4); }
static void put64(unsigned char *p, int offset, uint64_t value) { memcpy(p + offset, &value, 8); }

EXPORT cudaError_t cudaGetDeviceProperties(void *properties, int device) {
    unsigned char *p = properties;
    size_t total = 0;
    CUresult result = cuDeviceTotalMem_v2(&total, device);
    if (result) return fail(result);
    memset(p, 0, PROP_SIZE);
    snprintf((char *)p, 256, "CUDA simulator %d", device);
    p[PROP_UUID + 15] = (unsigned char)(device + 1);
    put64(p, PROP_TOTAL, total);
    put64(p, PROP_SHARED_BLOCK, 49152);
    put32(p, PROP_REGS, 65536);
    put32(p, PROP_WARP, 32);
    put32(p, PROP_THREADS_BLOCK, 1024);
    for (int i = 0; i < 3; i++) {
        put32(p, PROP_DIM + 4 * i, i < 2 ? 1024 : 64);
        put32(p, PROP_GRID + 4 * i, i ? 65535 : 2147483647);
    }
    put32(p, PROP_MAJOR, 8);
    put64(p, PROP_TEXTURE, 512);
    put32(p, PROP_SM, 108);
    put32(p, PROP_CONCURRENT, 1);
    put32(p, PROP_BUS, device + 1);
    put32(p, PROP_L2, 40 << 20);
    put32(p, PROP_THREADS_SM, 2048);
    put64(p, PROP_SHARED_SM, 167936);
    put32(p, PROP_REGS_SM, 65536);
    put64(p, PROP_SHARED_OPTIN, 166912);
    put32(p, PROP_BLOCKS_SM, 32);
    put32(p, PROP_POOLS, 1);
    return 0;
}

EXPORT cudaError_t cudaGetDeviceProperties_v2(void *properties, int device) {
    return cudaGetDeviceProperties(properties, device);
}

/* --- errors --- */

EXPORT cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = 0;
    return error;
}
EXPORT cudaError_t cudaPeekAtLastError(void) { return last_error; }
EXPORT const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
    case 0: return "no error";
    case 2: return "out of memory";
    case 101: return "invalid device ordinal";
    case 801: return "operation not supported";
    default: return "simulated CUDA error";
    }
}
EXPORT const char *cudaGetErrorName(cudaError_t error) {
    return error == 2 ? "cudaErrorMemoryAllocation" : error ? "cudaErrorSimulated" : "cudaSuccess";
}

/* --- kernels' attributes --- */

EXPORT cudaError_t cudaFuncGetAttributes(void *attributes, const void *function) {
    (void)function;
    memset(attributes, 0, 144);
    put32(attributes, 24, 1024); /* threads per block */
    put32(attributes, 28, 32);   /* registers */
    put32(attributes, 36, 80);   /* binary version */
    return 0;
}
EXPORT cudaError_t cudaFuncSetAttribute(void) { return 0; }
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks) { *blocks = 8; return 0; }
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks) {
    *blocks = 8;
    return 0;
}

/* --- looking driver entry points up --- */

EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function,
                                                    unsigned version, uint64_t flags, int *status) {
    int found;
    cuInit(0);
    CUresult result = cuGetProcAddress_v2(symbol, function, (int)version, flags, &found);
    if (status) *status = found;
    return result == CUDA_ERROR_NOT_FOUND ? 0 : fail(result);
}
EXPORT cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, uint64_t flags,
                                           int *status) {
    return cudaGetDriverEntryPointByVersion(symbol, function, RUNTIME_VERSION, flags, status);
}
