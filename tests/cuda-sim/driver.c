/* The simulated driver, libcuda.so.1.
 *
 * It keeps exact accounts of device memory per device, fails when a device is full, reuses freed
 * addresses as the real one does, and computes nothing. Configuration: README.md. */
#define _GNU_SOURCE
#include "sim.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct context {
    int device;
};

/* One range of device addresses in use, in a hash table by address. */
struct block {
    uint64_t address;
    uint64_t size;
    int device;
    int state; /* 0 empty, 1 used, 2 deleted */
};

/* A freed range, to be handed out again. */
struct hole {
    uint64_t address;
    uint64_t size;
};

struct device {
    uint64_t capacity;
    uint64_t allocated;
    uint64_t next_address;
    struct hole *holes;
    size_t hole_count, hole_room;
};

/* A piece of physical memory of the virtual memory management API. */
struct physical {
    uint64_t size;
    int device;
    int references; /* the handle, and each mapping */
};

/* A scripted failure: see README.md. */
struct failure {
    char call[48];
    uint64_t number;    /* fail this call, counted from 1; 0: any */
    uint64_t more_than; /* fail requests above this size */
    CUresult code;
    uint64_t seen;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct device devices[MAX_DEVICES];
static struct context contexts[MAX_DEVICES];
static int primary_active[MAX_DEVICES];
static int device_count;
static struct block *blocks;
static size_t block_room, block_used;
static struct physical *physicals;
static size_t physical_count, physical_room;
static struct { uint64_t address, size; CUmemHandle handle; } *mappings;
static size_t mapping_count, mapping_room;
static struct failure failures[32];
static int failure_count;
static uint64_t alloc_calls, free_calls, failed_calls;
static _Thread_local struct context *current;

static uint64_t parse_size(const char *text) {
    char *end;
    double value = strtod(text, &end);
    switch (*end) {
    case 'K': case 'k': value *= 1024.0; break;
    case 'M': case 'm': value *= 1024.0 * 1024; break;
    case 'G': case 'g': value *= 1024.0 * 1024 * 1024; break;
    case 'T': case 't': value *= 1024.0 * 1024 * 1024 * 1024; break;
    }
    return (uint64_t)value;
}

/* call#N=CODE or call>SIZE=CODE, separated by commas. */
static void parse_failures(const char *text) {
    char copy[1024];
    snprintf(copy, sizeof copy, "%s", text);
    char *state = NULL;
    for (char *rule = strtok_r(copy, ",", &state); rule && failure_count < 32;
         rule = strtok_r(NULL, ",", &state)) {
        struct failure *f = &failures[failure_count];
        memset(f, 0, sizeof *f);
        f->code = CUDA_ERROR_OUT_OF_MEMORY;
        f->more_than = UINT64_MAX;
        char *equal = strchr(rule, '=');
        if (equal) {
            f->code = atoi(equal + 1);
            *equal = 0;
        }
        char *mark = strpbrk(rule, "#>");
        if (!mark) {
            fprintf(stderr, "cudasim: CUDASIM_FAIL: no `#N` or `>SIZE` in `%s`\n", rule);
            continue;
        }
        if (*mark == '#')
            f->number = strtoull(mark + 1, NULL, 10);
        else
            f->more_than = parse_size(mark + 1);
        *mark = 0;
        snprintf(f->call, sizeof f->call, "%s", rule);
        failure_count++;
    }
}

static void initialise(void) {
    const char *count = getenv("CUDASIM_DEVICES");
    const char *memory = getenv("CUDASIM_MEMORY");
    const char *fail = getenv("CUDASIM_FAIL");
    device_count = count ? atoi(count) : 1;
    if (device_count < 0) device_count = 0;
    if (device_count > MAX_DEVICES) device_count = MAX_DEVICES;
    uint64_t capacity = 8ull << 30;
    for (int i = 0; i < MAX_DEVICES; i++) {
        if (memory && *memory) {
            capacity = parse_size(memory);
            memory = strchr(memory, ':');
            if (memory) memory++;
        }
        devices[i].capacity = capacity;
        devices[i].next_address = DEVICE_BASE + ((uint64_t)i << DEVICE_SHIFT) + (2 << 20);
        contexts[i].device = i;
    }
    if (fail) parse_failures(fail);
}

/* The scripted result of this call, or 0. Called with the lock held. */
static CUresult scripted(const char *call, uint64_t size) {
    for (int i = 0; i < failure_count; i++) {
        struct failure *f = &failures[i];
        if (strcmp(f->call, call)) continue;
        f->seen++;
        if (f->number == f->seen || size > f->more_than) {
            failed_calls++;
            return f->code;
        }
    }
    return CUDA_SUCCESS;
}

static size_t slot_of(uint64_t address) {
    return (size_t)(((address >> 9) * 0x9e3779b97f4a7c15ull) >> 20) & (block_room - 1);
}

static void block_insert(uint64_t address, uint64_t size, int device) {
    if ((block_used + 1) * 2 > block_room) {
        struct block *old = blocks;
        size_t old_room = block_room;
        block_room = block_room ? block_room * 2 : 1024;
        blocks = calloc(block_room, sizeof *blocks);
        block_used = 0;
        for (size_t i = 0; i < old_room; i++)
            if (old[i].state == 1) block_insert(old[i].address, old[i].size, old[i].device);
        free(old);
    }
    size_t at = slot_of(address);
    while (blocks[at].state) at = (at + 1) & (block_room - 1);
    blocks[at] = (struct block){address, size, device, 1};
    block_used++;
}

static struct block *block_find(uint64_t address) {
    if (!block_room) return NULL;
    for (size_t at = slot_of(address); blocks[at].state; at = (at + 1) & (block_room - 1))
        if (blocks[at].state == 1 && blocks[at].address == address) return &blocks[at];
    return NULL;
}

/* A range of addresses: a freed one of the same size if there is one, else a fresh one. */
static uint64_t take_address(int device, uint64_t size) {
    struct device *d = &devices[device];
    for (size_t i = d->hole_count, tries = 0; i-- > 0 && tries < 64; tries++) {
        if (d->holes[i].size == size) {
            uint64_t address = d->holes[i].address;
            d->holes[i] = d->holes[--d->hole_count];
            return address;
        }
    }
    uint64_t align = size >= (2 << 20) ? (2 << 20) : 512;
    uint64_t address = (d->next_address + align - 1) & ~(align - 1);
    d->next_address = address + size;
    return address;
}

static void give_address(int device, uint64_t address, uint64_t size) {
    struct device *d = &devices[device];
    if (d->hole_count == d->hole_room) {
        d->hole_room = d->hole_room ? d->hole_room * 2 : 64;
        d->holes = realloc(d->holes, d->hole_room * sizeof *d->holes);
    }
    d->holes[d->hole_count++] = (struct hole){address, size};
}

static CUresult allocate(const char *call, CUdeviceptr *out, uint64_t size) {
    pthread_once(&once, initialise);
    if (!current) return CUDA_ERROR_INVALID_CONTEXT;
    if (!out || !size) return CUDA_ERROR_INVALID_VALUE;
    int device = current->device;
    pthread_mutex_lock(&lock);
    alloc_calls++;
    CUresult result = scripted(call, size);
    if (!result && size > devices[device].capacity - devices[device].allocated) {
        failed_calls++;
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!result) {
        devices[device].allocated += size;
        *out = take_address(device, size);
        block_insert(*out, size, device);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult release(const char *call, CUdeviceptr address) {
    if (!address) return CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    free_calls++;
    CUresult result = scripted(call, 0);
    struct block *block = result ? NULL : block_find(address);
    if (block) {
        devices[block->device].allocated -= block->size;
        give_address(block->device, address, block->size);
        block->state = 2;
    } else if (!result) {
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* The simulator's own count: the authority that tests compare with. */
EXPORT uint64_t cudasim_allocated_bytes(int device) {
    pthread_once(&once, initialise);
    if (device < 0 || device >= MAX_DEVICES) return 0;
    pthread_mutex_lock(&lock);
    uint64_t bytes = devices[device].allocated;
    pthread_mutex_unlock(&lock);
    return bytes;
}
EXPORT uint64_t cudasim_alloc_calls(void) { return alloc_calls; }
EXPORT uint64_t cudasim_free_calls(void) { return free_calls; }
EXPORT uint64_t cudasim_failed_calls(void) { return failed_calls; }

/* --- initialisation, devices, contexts --- */

EXPORT CUresult cuInit(unsigned flags) {
    (void)flags;
    pthread_once(&once, initialise);
    return device_count ? CUDA_SUCCESS : 100;
}
EXPORT CUresult cuDriverGetVersion(int *version) { *version = 13020; return 0; }
EXPORT CUresult cuDeviceGetCount(int *count) {
    pthread_once(&once, initialise);
    *count = device_count;
    return 0;
}
EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    pthread_once(&once, initialise);
    if (ordinal < 0 || ordinal >= device_count) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return 0;
}
EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    snprintf(name, length, "CUDA simulator %d", device);
    return 0;
}
EXPORT CUresult cuDeviceGetUuid_v2(unsigned char *uuid, CUdevice device) {
    memset(uuid, 0, 16);
    uuid[15] = (unsigned char)(device + 1);
    return 0;
}
EXPORT CUresult cuDeviceGetUuid(unsigned char *uuid, CUdevice device) {
    return cuDeviceGetUuid_v2(uuid, device);
}
EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    pthread_once(&once, initialise);
    if (device < 0 || device >= device_count) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = devices[device].capacity;
    return 0;
}
EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    (void)device;
    switch (attribute) {
    case 75: *value = 8; break;   /* compute capability, major */
    case 76: *value = 0; break;   /* minor */
    case 16: *value = 108; break; /* multiprocessors */
    case 10: *value = 32; break;  /* warp size */
    case 1: *value = 1024; break; /* threads per block */
    case 102: *value = 1; break;  /* virtual memory management */
    case 115: *value = 1; break;  /* memory pools */
    case 119: *value = 0; break;  /* pool handle types */
    default: *value = 0;
    }
    return 0;
}
EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    if (device < 0 || device >= MAX_DEVICES) return CUDA_ERROR_INVALID_DEVICE;
    if (flags) *flags = 0;
    *active = primary_active[device];
    return 0;
}
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    pthread_once(&once, initialise);
    if (device < 0 || device >= device_count) return CUDA_ERROR_INVALID_DEVICE;
    primary_active[device] = 1;
    *context = &contexts[device];
    return 0;
}
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) { (void)device; return 0; }
EXPORT CUresult cuCtxGetCurrent(CUcontext *context) { *context = current; return 0; }
EXPORT CUresult cuCtxSetCurrent(CUcontext context) { current = context; return 0; }
EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) { current = context; return 0; }
EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    if (context) *context = current;
    return 0;
}
EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
    if (!current) return CUDA_ERROR_INVALID_CONTEXT;
    *device = current->device;
    return 0;
}
EXPORT CUresult cuCtxSynchronize(void) { return 0; }
EXPORT CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "simulated driver error";
    return 0;
}
EXPORT CUresult cuGetErrorName(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_SIMULATED";
    return 0;
}
EXPORT CUresult cuLogsRegisterCallback(void *callback, void *data, void **handle) {
    (void)callback, (void)data;
    if (handle) *handle = NULL;
    return 0;
}

/* --- memory --- */

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    return allocate("cuMemAlloc_v2", address, bytes);
}
EXPORT CUresult cuMemFree_v2(CUdeviceptr address) { return release("cuMemFree_v2", address); }
EXPORT CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned flags) {
    (void)flags;
    return allocate("cuMemAllocManaged", address, bytes);
}
EXPORT CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream stream) {
    (void)stream;
    return allocate("cuMemAllocAsync", address, bytes);
}
EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
                                        CUstream stream) {
    (void)pool, (void)stream;
    return allocate("cuMemAllocFromPoolAsync", address, bytes);
}
EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
    (void)stream;
    return release("cuMemFreeAsync", address);
}
EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    pthread_once(&once, initialise);
    if (!current) return CUDA_ERROR_INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    struct device *d = &devices[current->device];
    *free_bytes = d->capacity - d->allocated;
    *total = d->capacity;
    pthread_mutex_unlock(&lock);
    return 0;
}
EXPORT CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    (void)flags;
    return posix_memalign(pointer, 4096, bytes ? bytes : 1) ? CUDA_ERROR_OUT_OF_MEMORY : 0;
}
EXPORT CUresult cuMemFreeHost(void *pointer) {
    free(pointer);
    return 0;
}
EXPORT CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned flags) {
    (void)pointer, (void)bytes, (void)flags;
    return 0;
}
EXPORT CUresult cuMemHostUnregister(void *pointer) { (void)pointer; return 0; }
EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
    pthread_mutex_lock(&lock);
    struct block *block = block_find(address);
    if (block) {
        if (base) *base = block->address;
        if (size) *size = block->size;
    }
    pthread_mutex_unlock(&lock);
    return block ? 0 : CUDA_ERROR_INVALID_VALUE;
}
EXPORT CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address) {
    if (!address_is_device(address)) return CUDA_ERROR_INVALID_VALUE;
    if (attribute == 9) *(int *)data = address_device(address); /* device ordinal */
    else if (attribute == 2) *(int *)data = 2;                  /* memory type: device */
    else return CUDA_ERROR_NOT_SUPPORTED;
    return 0;
}

/* --- virtual memory management: memory counts from its creation until it is released and unmapped */

struct location { int type, id; };
struct properties { int type, handle_types; struct location location; };

static void drop_physical(CUmemHandle handle) {
    struct physical *p = &physicals[handle - 1];
    if (--p->references == 0) devices[p->device].allocated -= p->size;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const void *properties,
                                              int option) {
    (void)properties, (void)option;
    *granularity = 2 << 20;
    return 0;
}
EXPORT CUresult cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment,
                                    CUdeviceptr wanted, unsigned long long flags) {
    (void)alignment, (void)wanted, (void)flags;
    pthread_once(&once, initialise);
    pthread_mutex_lock(&lock);
    *address = take_address(current ? current->device : 0, size);
    pthread_mutex_unlock(&lock);
    return 0;
}
EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
    if (!address_is_device(address)) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    give_address(address_device(address), address, size);
    pthread_mutex_unlock(&lock);
    return 0;
}
EXPORT CUresult cuMemCreate(CUmemHandle *handle, size_t size, const struct properties *properties,
                            unsigned long long flags) {
    (void)flags;
    int device = properties->location.id;
    if (device < 0 || device >= device_count) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    alloc_calls++;
    CUresult result = scripted("cuMemCreate", size);
    if (!result && size > devices[device].capacity - devices[device].allocated) {
        failed_calls++;
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!result) {
        devices[device].allocated += size;
        if (physical_count == physical_room) {
            physical_room = physical_room ? physical_room * 2 : 256;
            physicals = realloc(physicals, physical_room * sizeof *physicals);
        }
        physicals[physical_count++] = (struct physical){size, device, 1};
        *handle = physical_count;
    }
    pthread_mutex_unlock(&lock);
    return result;
}
EXPORT CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemHandle handle,
                         unsigned long long flags) {
    (void)offset, (void)flags;
    if (!handle || handle > physical_count) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    physicals[handle - 1].references++;
    if (mapping_count == mapping_room) {
        mapping_room = mapping_room ? mapping_room * 2 : 256;
        mappings = realloc(mappings, mapping_room * sizeof *mappings);
    }
    mappings[mapping_count].address = address;
    mappings[mapping_count].size = size;
    mappings[mapping_count++].handle = handle;
    pthread_mutex_unlock(&lock);
    return 0;
}
EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < mapping_count;) {
        if (mappings[i].address >= address && mappings[i].address < address + size) {
            drop_physical(mappings[i].handle);
            mappings[i] = mappings[--mapping_count];
        } else {
            i++;
        }
    }
    pthread_mutex_unlock(&lock);
    return 0;
}
EXPORT CUresult cuMemRelease(CUmemHandle handle) {
    if (!handle || handle > physical_count) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    drop_physical(handle);
    pthread_mutex_unlock(&lock);
    return 0;
}
EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const void *access, size_t count) {
    (void)address, (void)size, (void)access, (void)count;
    return 0;
}

/* --- pools: a pool keeps nothing back, so reserved is used --- */

static int pool_marks[MAX_DEVICES];

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    *pool = &pool_marks[device];
    return 0;
}
EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    return cuDeviceGetDefaultMemPool(pool, device);
}
EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
    int device = (int)((int *)pool - pool_marks);
    uint64_t bytes = device >= 0 && device < MAX_DEVICES ? cudasim_allocated_bytes(device) : 0;
    *(uint64_t *)value = attribute >= 5 ? bytes : 0; /* 5-8: reserved and used, now and highest */
    return 0;
}
EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    (void)pool, (void)attribute, (void)value;
    return 0;
}
EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) { (void)pool, (void)keep; return 0; }

/* --- looking entry points up --- */

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version,
                                    uint64_t flags, int *status) {
    (void)version, (void)flags;
    static void *self;
    if (!self) {
        Dl_info info;
        dladdr((void *)cuInit, &info);
        self = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    }
    char newest[128];
    snprintf(newest, sizeof newest, "%s_v2", symbol);
    *function = dlsym(self, newest);
    if (!*function) *function = dlsym(self, symbol);
    if (status) *status = *function ? 0 : 1;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* --- what torch looks up at start and this simulation does not do --- */

#define UNSUPPORTED(name) \
    EXPORT CUresult name(void) { return CUDA_ERROR_NOT_SUPPORTED; }
UNSUPPORTED(cuCtxFromGreenCtx)
UNSUPPORTED(cuDevResourceGenerateDesc)
UNSUPPORTED(cuDevSmResourceSplitByCount)
UNSUPPORTED(cuDeviceGetDevResource)
UNSUPPORTED(cuGreenCtxCreate)
UNSUPPORTED(cuGreenCtxDestroy)
UNSUPPORTED(cuGreenCtxStreamCreate)
UNSUPPORTED(cuLogsUnregisterCallback)
UNSUPPORTED(cuMemExportToShareableHandle)
UNSUPPORTED(cuMemGetAllocationPropertiesFromHandle)
UNSUPPORTED(cuMemImportFromShareableHandle)
UNSUPPORTED(cuMemRetainAllocationHandle)
UNSUPPORTED(cuMemsetD32Async)
UNSUPPORTED(cuMulticastAddDevice)
UNSUPPORTED(cuMulticastBindMem)
UNSUPPORTED(cuMulticastCreate)
UNSUPPORTED(cuMulticastUnbind)
UNSUPPORTED(cuStreamWriteValue32)
