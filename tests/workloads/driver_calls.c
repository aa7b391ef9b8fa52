/* Random calls of every entry point of the CUDA driver that allocates or frees, from several threads
 * on several devices: sizes from 1 B to 1 GiB, frees in random order, contexts that die with their
 * memory, failing calls. What is allocated is also counted here, and has to be what the simulated
 * driver counts.
 *
 *     cc -O1 -pthread -I tests/cuda-sim driver_calls.c LIBRARIES/libcuda.so.1 -Wl,-rpath,LIBRARIES */
#define _GNU_SOURCE
#include "sim.h"

/* --- the driver's entry points --- */

struct ipc_handle { char bytes[64]; };
struct array_2d { size_t width, height; int format; unsigned channels; };
struct array_3d { size_t width, height, depth; int format; unsigned channels, flags; };
/* The first version of the API. */
struct array_2d_v1 { unsigned width, height; int format; unsigned channels; };
struct array_3d_v1 { unsigned width, height, depth; int format; unsigned channels, flags; };
/* CUmemAllocationProp: type, handle types, location type and device, and what stays zero. */
struct properties { int type, handle_types, location_type, device; uint64_t rest[2]; };

CUresult cuInit(unsigned);
CUresult cuDeviceGetCount(int *);
CUresult cuMemAlloc(CUdeviceptr_v1 *, unsigned);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemAllocManaged(CUdeviceptr *, size_t, unsigned);
CUresult cuMemAllocPitch_v2(CUdeviceptr *, size_t *, size_t, size_t, unsigned);
CUresult cuMemAllocPitch(CUdeviceptr_v1 *, unsigned *, unsigned, unsigned, unsigned);
CUresult cuMemAllocAsync(CUdeviceptr *, size_t, CUstream);
CUresult cuMemAllocAsync_ptsz(CUdeviceptr *, size_t, CUstream);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
CUresult cuMemFree(CUdeviceptr_v1);
CUresult cuMemFree_v2(CUdeviceptr);
CUresult cuMemFreeAsync(CUdeviceptr, CUstream);
CUresult cuMemFreeAsync_ptsz(CUdeviceptr, CUstream);
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *, CUdevice);
CUresult cuArrayCreate_v2(uint64_t *, const struct array_2d *);
CUresult cuArray3DCreate_v2(uint64_t *, const struct array_3d *);
CUresult cuArrayCreate(uint64_t *, const struct array_2d_v1 *);
CUresult cuArray3DCreate(uint64_t *, const struct array_3d_v1 *);
CUresult cuArrayDestroy(uint64_t);
CUresult cuMipmappedArrayCreate(uint64_t *, const struct array_3d *, unsigned);
CUresult cuMipmappedArrayDestroy(uint64_t);
CUresult cuMemPoolTrimTo(CUmemoryPool, size_t);
CUresult cuMemAllocHost(void **, unsigned);
CUresult cuMemAllocHost_v2(void **, size_t);
CUresult cuMemHostAlloc(void **, size_t, unsigned);
CUresult cuMemFreeHost(void *);
CUresult cuMemHostRegister(void *, size_t, unsigned);
CUresult cuMemHostRegister_v2(void *, size_t, unsigned);
CUresult cuMemHostUnregister(void *);
CUresult cuMemAddressReserve(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
CUresult cuMemAddressFree(CUdeviceptr, size_t);
CUresult cuMemCreate(CUmemHandle *, size_t, const struct properties *, unsigned long long);
CUresult cuMemRelease(CUmemHandle);
CUresult cuMemRetainAllocationHandle(CUmemHandle *, void *);
CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUmemHandle, unsigned long long);
CUresult cuMemUnmap(CUdeviceptr, size_t);
CUresult cuMemImportFromShareableHandle(CUmemHandle *, void *, int);
CUresult cuIpcOpenMemHandle(CUdeviceptr *, struct ipc_handle, unsigned);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *, struct ipc_handle, unsigned);
CUresult cuIpcCloseMemHandle(CUdeviceptr);
CUresult cuImportExternalMemory(uint64_t *, const void *);
CUresult cuDestroyExternalMemory(uint64_t);
CUresult cuDevicePrimaryCtxRetain(CUcontext *, CUdevice);
CUresult cuDevicePrimaryCtxRelease(CUdevice);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice);
CUresult cuDevicePrimaryCtxReset(CUdevice);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice);
CUresult cuCtxCreate(CUcontext *, unsigned, CUdevice);
CUresult cuCtxCreate_v2(CUcontext *, unsigned, CUdevice);
CUresult cuCtxCreate_v3(CUcontext *, void *, int, unsigned, CUdevice);
CUresult cuCtxCreate_v4(CUcontext *, void *, unsigned, CUdevice);
CUresult cuCtxSetCurrent(CUcontext);
CUresult cuCtxPushCurrent(CUcontext);
CUresult cuCtxPushCurrent_v2(CUcontext);
CUresult cuCtxPopCurrent(CUcontext *);
CUresult cuCtxPopCurrent_v2(CUcontext *);
CUresult cuCtxDestroy(CUcontext);
CUresult cuCtxDestroy_v2(CUcontext);
CUresult cuGreenCtxCreate(CUcontext *, void *, CUdevice, unsigned);
CUresult cuCtxFromGreenCtx(CUcontext *, CUcontext);
CUresult cuGreenCtxDestroy(CUcontext);

/* --- what a thread has --- */

enum kind { LINEAR, ARRAY, MIPMAPPED, HOST, REGISTERED, VIRTUAL, SHARED, IPC, EXTERNAL };

struct item {
    enum kind kind;
    int device;
    uint64_t address; /* VIRTUAL and SHARED: where it is mapped, 0: nowhere */
    uint64_t size;
    CUcontext context; /* that takes it with it */
    CUmemHandle handle;
    int holds; /* of the handle */
};

enum { MAX_OWN = 2, MAX_DEPTH = 4, HUGE_PAGE = 2 << 20 };

struct use {
    CUcontext context;
    int device;
};

struct state {
    struct use own[MAX_OWN]; /* contexts that this thread made */
    int owned;
    struct use stack[MAX_DEPTH]; /* the thread's current contexts */
    int depth;
};

#include "random_calls.h"

static CUcontext primary[MAX_DEVICES];
static CUmemoryPool pools[MAX_DEVICES];
static CUcontext reset; /* the primary context that was reset at this quiet point */

static enum account account_of(int kind) {
    switch ((enum kind)kind) {
    case LINEAR: case ARRAY: case MIPMAPPED: case VIRTUAL: return OF_DEVICE;
    case HOST: case REGISTERED: return PINNED;
    default: return IMPORTED;
    }
}

static struct use *current(struct worker *w) { return &w->is.stack[w->is.depth - 1]; }

/* --- allocating --- */

static CUresult make_linear(struct worker *w, struct item *item) {
    CUdeviceptr_v1 low = 0;
    size_t pitch = 0, height = 1 + next(w) % 64, width = 1 + item->size / height;
    CUmemoryPool pool = pools[item->device];
    CUresult result;
    unsigned narrow = 0;
    switch (pick(w, 9)) {
    case 8:
        result = CALL(cuMemAllocPitch(&low, &narrow, (unsigned)width, (unsigned)height, 4));
        item->address = low;
        item->size = (uint64_t)narrow * height;
        return result;
    case 0:
        result = CALL(cuMemAlloc(&low, (unsigned)item->size));
        item->address = low;
        return result;
    case 1:
        result = CALL(cuMemAllocPitch_v2(&item->address, &pitch, width, height, 4));
        item->size = pitch * height;
        return result;
    case 2: return CALL(cuMemAllocManaged(&item->address, item->size, 1));
    case 3: return CALL(cuMemAllocAsync(&item->address, item->size, NULL));
    case 4: return CALL(cuMemAllocAsync_ptsz(&item->address, item->size, NULL));
    case 5: return CALL(cuMemAllocFromPoolAsync(&item->address, item->size, pool, NULL));
    case 6: return CALL(cuMemAllocFromPoolAsync_ptsz(&item->address, item->size, pool, NULL));
    default: return CALL(cuMemAlloc_v2(&item->address, item->size));
    }
}

static CUresult make_array(struct worker *w, struct item *item) {
    static const struct { int format; unsigned bytes; } formats[] = {
        {0x01, 1}, {0x02, 2}, {0x03, 4}, {0x08, 1}, {0x09, 2}, {0x0a, 4}, {0x10, 2}, {0x20, 4},
    };
    int format = formats[pick(w, 8)].format;
    unsigned channels = 1u << pick(w, 3), element = channels, levels = 1 + (unsigned)pick(w, 14);
    for (int i = 0; i < 8; i++)
        if (formats[i].format == format) element = channels * formats[i].bytes;
    int layered = pick(w, 2);
    unsigned width = 1 + (unsigned)pick(w, 2048), height = (unsigned)pick(w, 256);
    unsigned depth = (unsigned)pick(w, 32);
    struct array_3d wanted = {width, height, depth, format, channels, (unsigned)layered};
    struct array_2d flat = {width, height, format, channels};
    struct array_3d_v1 wanted_v1 = {width, height, depth, format, channels, 0};
    struct array_2d_v1 flat_v1 = {width, height, format, channels};
    if (item->kind == MIPMAPPED) {
        item->size = elements(width, height, depth, levels, layered) * element;
        return CALL(cuMipmappedArrayCreate(&item->address, &wanted, levels));
    }
    int choice = pick(w, 4);
    item->size = elements(width, height, choice < 2 ? 0 : depth, 1, 0) * element;
    switch (choice) {
    case 0: return CALL(cuArrayCreate(&item->address, &flat_v1));
    case 1: return CALL(cuArrayCreate_v2(&item->address, &flat));
    case 2: return CALL(cuArray3DCreate(&item->address, &wanted_v1));
    default: return CALL(cuArray3DCreate_v2(&item->address, &wanted));
    }
}

static CUresult make_host(struct worker *w, struct item *item) {
    void *pointer = NULL;
    CUresult result;
    switch (pick(w, 3)) {
    case 0: result = CALL(cuMemAllocHost(&pointer, (unsigned)item->size)); break;
    case 1: result = CALL(cuMemAllocHost_v2(&pointer, item->size)); break;
    default: result = CALL(cuMemHostAlloc(&pointer, item->size, 0));
    }
    item->address = (uint64_t)pointer;
    return result;
}

static CUresult make_registered(struct worker *w, struct item *item) {
    void *pages = mmap(NULL, item->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    item->address = (uint64_t)pages;
    CUresult result = pick(w, 2) ? CALL(cuMemHostRegister(pages, item->size, 0))
                                 : CALL(cuMemHostRegister_v2(pages, item->size, 0));
    if (result) munmap(pages, item->size);
    return result;
}

static CUresult make_virtual(struct worker *w, struct item *item) {
    struct properties properties = {1, 0, 1, pick(w, devices), {0}};
    item->device = properties.device;
    item->size = (item->size + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    item->holds = 1;
    return CALL(cuMemCreate(&item->handle, item->size, &properties, 0));
}

static CUresult make_imported(struct worker *w, struct item *item) {
    struct ipc_handle ipc = {{0}};
    switch (item->kind) {
    case SHARED:
        item->size = HUGE_PAGE;
        item->holds = 1;
        return CALL(cuMemImportFromShareableHandle(&item->handle, NULL, 1));
    case EXTERNAL: return CALL(cuImportExternalMemory(&item->address, &ipc));
    default:
        return pick(w, 2) ? CALL(cuIpcOpenMemHandle(&item->address, ipc, 1))
                          : CALL(cuIpcOpenMemHandle_v2(&item->address, ipc, 1));
    }
}

static void allocate(struct worker *w) {
    /* How often each kind is made, by repetition. */
    static const enum kind kinds[] = {LINEAR,    LINEAR, LINEAR, LINEAR,  LINEAR,  LINEAR,
                                      ARRAY,     HOST,   HOST,   VIRTUAL, VIRTUAL, REGISTERED,
                                      MIPMAPPED, SHARED, IPC,    EXTERNAL};
    struct item item = {.kind = kinds[pick(w, sizeof kinds / sizeof *kinds)],
                        .device = current(w)->device, .size = pick_size(w)};
    CUresult result;
    switch (item.kind) {
    case LINEAR: result = make_linear(w, &item); break;
    case ARRAY: case MIPMAPPED: result = make_array(w, &item); break;
    case HOST: result = make_host(w, &item); break;
    case REGISTERED: result = make_registered(w, &item); break;
    case VIRTUAL: result = make_virtual(w, &item); break;
    default: result = make_imported(w, &item);
    }
    if (result) return;
    if (item.kind <= MIPMAPPED) item.context = current(w)->context;
    keep(w, item);
}

/* --- freeing --- */

static CUresult free_linear(struct worker *w, uint64_t address) {
    int narrow = address <= UINT32_MAX;
    switch (pick(w, narrow ? 4 : 3)) {
    case 0: return CALL(cuMemFree_v2(address));
    case 1: return CALL(cuMemFreeAsync(address, NULL));
    case 2: return CALL(cuMemFreeAsync_ptsz(address, NULL));
    default: return CALL(cuMemFree((CUdeviceptr_v1)address));
    }
}

static void map(struct worker *w, struct item *item) {
    CUdeviceptr address;
    if (CALL(cuMemAddressReserve(&address, item->size, 0, 0, 0))) return;
    if (!CALL(cuMemMap(address, item->size, 0, item->handle, 0))) item->address = address;
    else CALL(cuMemAddressFree(address, item->size));
}

static void unmap(struct worker *w, struct item *item) {
    if (CALL(cuMemUnmap(item->address, item->size))) return;
    CALL(cuMemAddressFree(item->address, item->size));
    item->address = 0;
}

/* One step in the life of memory with a handle; true once nothing holds or maps it. */
static int step_virtual(struct worker *w, struct item *item, int towards_end) {
    CUmemHandle again;
    int step = towards_end ? (item->address ? 1 : 2) : pick(w, 5);
    if (step == 0 && !item->address) map(w, item);
    else if (step == 1 && item->address) unmap(w, item);
    else if (step == 3 && item->address && item->holds < 4) {
        if (!CALL(cuMemRetainAllocationHandle(&again, (char *)item->address + item->size - 1)))
            item->holds++;
    } else if (item->holds && !CALL(cuMemRelease(item->handle))) {
        item->holds--;
    }
    return !item->holds && !item->address;
}

static int let_go(struct worker *w, struct item *item, int towards_end) {
    CUresult result;
    switch (item->kind) {
    case LINEAR: result = free_linear(w, item->address); break;
    case ARRAY: result = CALL(cuArrayDestroy(item->address)); break;
    case MIPMAPPED: result = CALL(cuMipmappedArrayDestroy(item->address)); break;
    case HOST: result = CALL(cuMemFreeHost((void *)item->address)); break;
    case REGISTERED:
        result = CALL(cuMemHostUnregister((void *)item->address));
        if (!result) munmap((void *)item->address, item->size);
        break;
    case IPC: result = CALL(cuIpcCloseMemHandle(item->address)); break;
    case EXTERNAL: result = CALL(cuDestroyExternalMemory(item->address)); break;
    default: return step_virtual(w, item, towards_end);
    }
    return !result;
}

/* A free that has to fail: of what nobody allocated, or by the wrong entry point. */
static void free_wrongly(struct worker *w) {
    const struct item *item = &w->items[pick(w, w->live)];
    uint64_t nowhere = 0x7000000000ull + next(w) % 1000 * 512;
    CUresult result;
    switch (item->kind) {
    case LINEAR: result = CALL(cuArrayDestroy(item->address)); break;
    case ARRAY: result = CALL(cuMipmappedArrayDestroy(item->address)); break;
    case MIPMAPPED: result = CALL(cuMemFree_v2(item->address)); break;
    case HOST: result = CALL(cuMemHostUnregister((void *)item->address)); break;
    case REGISTERED: result = CALL(cuMemFreeHost((void *)item->address)); break;
    case VIRTUAL: result = CALL(cuMemUnmap(nowhere, HUGE_PAGE)); break;
    case IPC: result = CALL(cuDestroyExternalMemory(item->address)); break;
    case EXTERNAL: result = CALL(cuIpcCloseMemHandle(item->address)); break;
    default: result = free_linear(w, nowhere);
    }
    if (!result) die("a wrong free went well");
}

/* --- contexts --- */

static void pop(struct worker *w) {
    CUcontext context;
    if (!(pick(w, 2) ? CALL(cuCtxPopCurrent(&context)) : CALL(cuCtxPopCurrent_v2(&context))))
        w->is.depth--;
}

/* A primary context or one of this thread's own. */
static struct use pick_context(struct worker *w) {
    int choice = pick(w, devices + w->is.owned);
    return choice < devices ? (struct use){primary[choice], choice} : w->is.own[choice - devices];
}

static void create_context(struct worker *w) {
    struct use made = {NULL, pick(w, devices)};
    CUresult result;
    switch (pick(w, 4)) {
    case 0: result = CALL(cuCtxCreate(&made.context, 0, made.device)); break;
    case 1: result = CALL(cuCtxCreate_v2(&made.context, 0, made.device)); break;
    case 2: result = CALL(cuCtxCreate_v3(&made.context, NULL, 0, 0, made.device)); break;
    default: result = CALL(cuCtxCreate_v4(&made.context, NULL, 0, made.device));
    }
    if (result) return;
    w->is.own[w->is.owned++] = made;
    w->is.stack[w->is.depth++] = made;
}

static void forget_items_of(struct worker *w, CUcontext context) {
    for (int i = 0; i < w->live;)
        if (w->items[i].context == context) forget(w, i);
        else i++;
}

/* Destroys the thread's last own context, unless it lies deeper in the stack than on top. */
static void destroy_context(struct worker *w) {
    CUcontext context = w->is.own[w->is.owned - 1].context;
    for (int i = 0; i < w->is.depth - 1; i++)
        if (w->is.stack[i].context == context) return;
    int on_top = current(w)->context == context;
    if (on_top && w->is.depth == 1) return;
    if (pick(w, 2) ? CALL(cuCtxDestroy(context)) : CALL(cuCtxDestroy_v2(context))) return;
    w->is.depth -= on_top;
    w->is.owned--;
    forget_items_of(w, context);
}

/* Holds a primary context for a moment; the main thread holds it all the time. */
static void retain_and_release(struct worker *w) {
    CUcontext context;
    int device = pick(w, devices);
    if (CALL(cuDevicePrimaryCtxRetain(&context, device))) return;
    while (pick(w, 2) ? CALL(cuDevicePrimaryCtxRelease(device))
                      : CALL(cuDevicePrimaryCtxRelease_v2(device)))
        ;
}

/* Allocates in a green context, whose memory is that of the device's primary one. */
static void visit_green_context(struct worker *w) {
    CUcontext green, context;
    int device = pick(w, devices);
    if (CALL(cuGreenCtxCreate(&green, NULL, device, 1))) return;
    if (!CALL(cuCtxFromGreenCtx(&context, green)) && !CALL(cuCtxPushCurrent_v2(context))) {
        w->is.stack[w->is.depth++] = (struct use){primary[device], device};
        if (w->live < max_live) allocate(w);
        pop(w);
    }
    while (CALL(cuGreenCtxDestroy(green)))
        ;
}

static void change_context(struct worker *w) {
    struct use to = pick_context(w);
    int step = pick(w, 12);
    if (step == 0 && w->is.owned < MAX_OWN && w->is.depth < MAX_DEPTH) create_context(w);
    else if (step == 1 && w->is.owned) destroy_context(w);
    else if (step == 2) retain_and_release(w);
    else if (step == 3 && w->is.depth < MAX_DEPTH) visit_green_context(w);
    else if (step < 6 && w->is.depth < MAX_DEPTH) {
        if (!(pick(w, 2) ? CALL(cuCtxPushCurrent(to.context))
                         : CALL(cuCtxPushCurrent_v2(to.context))))
            w->is.stack[w->is.depth++] = to;
    } else if (step < 9 && w->is.depth > 1) {
        pop(w);
    } else if (!CALL(cuCtxSetCurrent(to.context))) {
        *current(w) = to;
    }
}

/* --- the run --- */

static void set_primary(struct worker *w) {
    int device = pick(w, devices);
    while (CALL(cuCtxSetCurrent(primary[device])))
        ;
    w->is.depth = 1;
    *current(w) = (struct use){primary[device], device};
}

static void begin_round(struct worker *w, int round) {
    (void)round;
    set_primary(w);
}

static void one_step(struct worker *w) {
    int step = pick(w, 200);
    if (step < 8) change_context(w);
    else if (step < 9) CALL(cuMemPoolTrimTo(pools[pick(w, devices)], pick_size(w)));
    else if (step < 12 && w->live) free_wrongly(w);
    else if (w->live >= max_live || (w->live && step < 104)) free_one(w);
    else allocate(w);
}

static void end_round(struct worker *w) {
    while (w->is.depth > 1) pop(w);
    set_primary(w);
}

static int is_gone(const struct item *item) { return reset && item->context == reset; }

static void must(CUresult result, const char *what) {
    if (result) die(what);
}

/* Resets a device and makes its primary context anew. */
static void change_at_quiet_point(struct worker *w, int round) {
    CUcontext context;
    int device = round % devices;
    reset = NULL;
    if (round % 3 != 2) return;
    if (pick(w, 2) ? CALL(cuDevicePrimaryCtxReset(device)) : CALL(cuDevicePrimaryCtxReset_v2(device)))
        return;
    reset = primary[device];
    must(CALL(cuDevicePrimaryCtxRelease_v2(device)), "cuDevicePrimaryCtxRelease_v2 fails");
    must(CALL(cuDevicePrimaryCtxRetain(&context, device)), "cuDevicePrimaryCtxRetain fails");
}

int main(int count, char **values) {
    begin(count, values);
    struct worker self = {.random = seed * 1000};
    struct worker *w = &self;
    int found = 0;
    must(cuInit(0), "cuInit fails");
    must(cuDeviceGetCount(&found), "cuDeviceGetCount fails");
    if (found < devices) die("too few devices");
    for (int i = 0; i < devices; i++) {
        must(CALL(cuDevicePrimaryCtxRetain(&primary[i], i)), "cuDevicePrimaryCtxRetain fails");
        must(cuDeviceGetDefaultMemPool(&pools[i], i), "cuDeviceGetDefaultMemPool fails");
    }
    return run(w);
}
