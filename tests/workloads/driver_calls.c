/* Random calls of every entry point of the CUDA driver that allocates or frees, from several threads
 * on several devices: sizes from 1 B to 1 GiB, frees in random order, contexts that die with their
 * memory, failing calls. What is allocated is also counted here, and has to be what the simulated
 * driver counts.
 *
 *     cc -O1 -pthread -I tests/cuda-sim driver_calls.c LIBRARIES/libcuda.so.1 -Wl,-rpath,LIBRARIES
 *
 * Prints one JSON line per quiet point, at which all threads stand still. With --wait it then waits
 * for a line on standard input, so that a tracer can be asked at the same moment. */
#define _GNU_SOURCE
#include "sim.h"

#include <getopt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

/* --- the driver's entry points --- */

struct ipc_handle { char bytes[64]; };
struct array_2d { size_t width, height; int format; unsigned channels; };
struct array_3d { size_t width, height, depth; int format; unsigned channels, flags; };
/* CUmemAllocationProp: type, handle types, location type and device, and what stays zero. */
struct properties { int type, handle_types, location_type, device; uint64_t rest[2]; };

CUresult cuInit(unsigned);
CUresult cuDeviceGetCount(int *);
CUresult cuMemAlloc(CUdeviceptr_v1 *, unsigned);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemAllocManaged(CUdeviceptr *, size_t, unsigned);
CUresult cuMemAllocPitch_v2(CUdeviceptr *, size_t *, size_t, size_t, unsigned);
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
CUresult cuArrayDestroy(uint64_t);
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
uint64_t cudasim_allocated_bytes(int);
uint64_t cudasim_pinned_bytes(void);
uint64_t cudasim_imported(void);

/* --- what a thread has --- */

enum kind { LINEAR, ARRAY, HOST, REGISTERED, VIRTUAL, SHARED, IPC, EXTERNAL };

struct item {
    enum kind kind;
    int device;
    uint64_t address; /* VIRTUAL and SHARED: where it is mapped, 0: nowhere */
    uint64_t size;
    CUcontext context; /* that takes it with it */
    CUmemHandle handle;
    int holds; /* of the handle */
};

enum { MAX_LIVE = 1024, MAX_OWN = 2, MAX_DEPTH = 4, HUGE_PAGE = 2 << 20 };

struct use {
    CUcontext context;
    int device;
};

struct worker {
    pthread_t thread;
    uint64_t random;
    uint64_t calls, failed;
    struct item items[MAX_LIVE];
    int live;
    struct use own[MAX_OWN]; /* contexts that this thread made */
    int owned;
    struct use stack[MAX_DEPTH]; /* the thread's current contexts */
    int depth;
};

static uint64_t calls = 1000000;
static int threads = 4, devices = 2, quiet_points = 10, max_live = 200, wait_for_line;
static uint64_t seed = 1;

static struct worker *workers;
static pthread_barrier_t barrier;
static CUcontext primary[MAX_DEVICES];
static CUmemoryPool pools[MAX_DEVICES];
static CUcontext reset; /* the primary context that was reset at this quiet point */

/* What has to be in use. */
static _Atomic uint64_t bytes[MAX_DEVICES], pinned, imported;
/* How often device memory and page-locked memory were allocated. */
static _Atomic uint64_t device_blocks, pinned_blocks;

static uint64_t next(struct worker *w) { /* splitmix64 */
    uint64_t z = w->random += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static int pick(struct worker *w, int choices) { return (int)(next(w) % (uint64_t)choices); }

/* From 1 B to 1 GiB, evenly over the powers of two, but only one in eight above 1 MiB. */
static uint64_t pick_size(struct worker *w) {
    int power = pick(w, 8) ? pick(w, 21) : 21 + pick(w, 10);
    return 1 + next(w) % (1ull << power);
}

static CUresult counted(struct worker *w, CUresult result) {
    w->calls++;
    w->failed += result != CUDA_SUCCESS;
    return result;
}
#define CALL(call) counted(w, call)

static struct use *current(struct worker *w) { return &w->stack[w->depth - 1]; }

/* --- allocating --- */

static CUresult make_linear(struct worker *w, struct item *item) {
    CUdeviceptr_v1 low = 0;
    size_t pitch = 0, height = 1 + next(w) % 64, width = 1 + item->size / height;
    CUmemoryPool pool = pools[item->device];
    CUresult result;
    switch (pick(w, 8)) {
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
    int format = pick(w, 8);
    unsigned channels = 1u << pick(w, 3);
    struct array_3d wanted = {1 + next(w) % 2048, next(w) % 256, next(w) % 32,
                              formats[format].format, channels, 0};
    struct array_2d flat = {wanted.width, wanted.height, wanted.format, channels};
    item->size = wanted.width * (wanted.height ? wanted.height : 1) * channels *
                 formats[format].bytes;
    if (pick(w, 2)) return CALL(cuArrayCreate_v2(&item->address, &flat));
    item->size *= wanted.depth ? wanted.depth : 1;
    return CALL(cuArray3DCreate_v2(&item->address, &wanted));
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

/* Books an item: in, or out again. */
static void book(const struct item *item, int in) {
    switch (item->kind) {
    case LINEAR: case ARRAY: case VIRTUAL:
        bytes[item->device] += in ? item->size : -item->size;
        device_blocks += in != 0;
        break;
    case HOST: case REGISTERED:
        pinned += in ? item->size : -item->size;
        pinned_blocks += in != 0;
        break;
    case SHARED: case IPC: case EXTERNAL: imported += in ? 1 : -1ull; break;
    }
}

static void allocate(struct worker *w) {
    /* How often each kind is made, by repetition. */
    static const enum kind kinds[] = {LINEAR, LINEAR, LINEAR, LINEAR,  LINEAR, LINEAR, ARRAY, HOST,
                                      HOST,   VIRTUAL, VIRTUAL, REGISTERED, SHARED, IPC, EXTERNAL};
    struct item item = {.kind = kinds[pick(w, sizeof kinds / sizeof *kinds)],
                        .device = current(w)->device, .size = pick_size(w)};
    CUresult result;
    switch (item.kind) {
    case LINEAR: result = make_linear(w, &item); break;
    case ARRAY: result = make_array(w, &item); break;
    case HOST: result = make_host(w, &item); break;
    case REGISTERED: result = make_registered(w, &item); break;
    case VIRTUAL: result = make_virtual(w, &item); break;
    default: result = make_imported(w, &item);
    }
    if (result) return;
    if (item.kind == LINEAR || item.kind == ARRAY) item.context = current(w)->context;
    book(&item, 1);
    w->items[w->live++] = item;
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

/* Frees an item, or goes a step towards it; false while it is there. */
static int let_go(struct worker *w, struct item *item, int towards_end) {
    CUresult result;
    switch (item->kind) {
    case LINEAR: result = free_linear(w, item->address); break;
    case ARRAY: result = CALL(cuArrayDestroy(item->address)); break;
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

static void forget(struct worker *w, int at) {
    book(&w->items[at], 0);
    w->items[at] = w->items[--w->live];
}

static void free_one(struct worker *w) {
    int at = pick(w, w->live);
    if (let_go(w, &w->items[at], 0)) forget(w, at);
}

/* A free that has to fail: of what nobody allocated, or by the wrong entry point. */
static void free_wrongly(struct worker *w) {
    const struct item *item = &w->items[pick(w, w->live)];
    uint64_t nowhere = 0x7000000000ull + next(w) % 1000 * 512;
    CUresult result;
    switch (item->kind) {
    case LINEAR: result = CALL(cuArrayDestroy(item->address)); break;
    case ARRAY: result = CALL(cuMemFree_v2(item->address)); break;
    case HOST: result = CALL(cuMemHostUnregister((void *)item->address)); break;
    case REGISTERED: result = CALL(cuMemFreeHost((void *)item->address)); break;
    case VIRTUAL: result = CALL(cuMemUnmap(nowhere, HUGE_PAGE)); break;
    case IPC: result = CALL(cuDestroyExternalMemory(item->address)); break;
    case EXTERNAL: result = CALL(cuIpcCloseMemHandle(item->address)); break;
    default: result = free_linear(w, nowhere);
    }
    if (!result) {
        fprintf(stderr, "driver_calls: a wrong free went well\n");
        exit(1);
    }
}

/* --- contexts --- */

static void pop(struct worker *w) {
    CUcontext context;
    if (!(pick(w, 2) ? CALL(cuCtxPopCurrent(&context)) : CALL(cuCtxPopCurrent_v2(&context))))
        w->depth--;
}

/* A primary context or one of this thread's own. */
static struct use pick_context(struct worker *w) {
    int choice = pick(w, devices + w->owned);
    return choice < devices ? (struct use){primary[choice], choice} : w->own[choice - devices];
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
    w->own[w->owned++] = made;
    w->stack[w->depth++] = made;
}

static void forget_items_of(struct worker *w, CUcontext context) {
    for (int i = 0; i < w->live;)
        if (w->items[i].context == context) forget(w, i);
        else i++;
}

/* Destroys the thread's last own context, unless it lies deeper in the stack than on top. */
static void destroy_context(struct worker *w) {
    CUcontext context = w->own[w->owned - 1].context;
    for (int i = 0; i < w->depth - 1; i++)
        if (w->stack[i].context == context) return;
    int on_top = current(w)->context == context;
    if (on_top && w->depth == 1) return;
    if (pick(w, 2) ? CALL(cuCtxDestroy(context)) : CALL(cuCtxDestroy_v2(context))) return;
    w->depth -= on_top;
    w->owned--;
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

static void change_context(struct worker *w) {
    struct use to = pick_context(w);
    int step = pick(w, 12);
    if (step == 0 && w->owned < MAX_OWN && w->depth < MAX_DEPTH) create_context(w);
    else if (step == 1 && w->owned) destroy_context(w);
    else if (step == 2) retain_and_release(w);
    else if (step < 6 && w->depth < MAX_DEPTH) {
        if (!(pick(w, 2) ? CALL(cuCtxPushCurrent(to.context))
                         : CALL(cuCtxPushCurrent_v2(to.context))))
            w->stack[w->depth++] = to;
    } else if (step < 9 && w->depth > 1) {
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
    w->depth = 1;
    *current(w) = (struct use){primary[device], device};
}

static void one_step(struct worker *w) {
    int step = pick(w, 100);
    if (step < 4) change_context(w);
    else if (step < 6 && w->live) free_wrongly(w);
    else if (w->live >= max_live || (w->live && step < 52)) free_one(w);
    else allocate(w);
}

static void end_worker(struct worker *w) {
    while (w->live)
        if (let_go(w, &w->items[w->live - 1], 1)) forget(w, w->live - 1);
    while (w->owned) destroy_context(w);
}

static void *work(void *argument) {
    struct worker *w = argument;
    uint64_t quota = calls / (uint64_t)(quiet_points * threads);
    set_primary(w);
    for (int round = 1; round <= quiet_points; round++) {
        while (w->calls < quota * (uint64_t)round) one_step(w);
        while (w->depth > 1) pop(w);
        set_primary(w);
        pthread_barrier_wait(&barrier);
        /* The main thread may reset a device here. */
        pthread_barrier_wait(&barrier);
        if (reset) forget_items_of(w, reset);
        pthread_barrier_wait(&barrier);
        /* The main thread reports here. */
        pthread_barrier_wait(&barrier);
        set_primary(w);
    }
    end_worker(w);
    return NULL;
}

static void wait_line(void) {
    int letter;
    while (wait_for_line && (letter = getchar()) != EOF && letter != '\n')
        ;
}

static void must(CUresult result, const char *what) {
    if (!result) return;
    fprintf(stderr, "driver_calls: %s: error %d\n", what, result);
    exit(1);
}

static void expect(const char *what, uint64_t found, uint64_t wanted) {
    if (found == wanted) return;
    fprintf(stderr, "driver_calls: %s: the driver counts %llu, the workload %llu\n", what,
            (unsigned long long)found, (unsigned long long)wanted);
    exit(1);
}

static void report(int number, const struct worker *w) {
    uint64_t made = w->calls, failed = w->failed;
    for (int i = 0; i < threads; i++) {
        made += workers[i].calls;
        failed += workers[i].failed;
    }
    printf("{\"quiet\":%d,\"devices\":[", number);
    for (int i = 0; i < devices; i++) {
        uint64_t driver = cudasim_allocated_bytes(i);
        expect("bytes of a device", driver, bytes[i]);
        printf("%s{\"driver\":%llu}", i ? "," : "", (unsigned long long)driver);
    }
    expect("pinned bytes", cudasim_pinned_bytes(), pinned);
    expect("imported memory", cudasim_imported(), imported);
    printf("],\"pinned\":%llu,\"imported\":%llu,\"calls\":%llu,\"failed\":%llu,"
           "\"device_blocks\":%llu,\"pinned_blocks\":%llu}\n",
           (unsigned long long)pinned, (unsigned long long)imported, (unsigned long long)made,
           (unsigned long long)failed, (unsigned long long)device_blocks,
           (unsigned long long)pinned_blocks);
    fflush(stdout);
    wait_line();
}

/* Resets a device and makes its primary context anew. */
static void reset_device(struct worker *w, int device) {
    CUcontext context;
    if (pick(w, 2) ? CALL(cuDevicePrimaryCtxReset(device)) : CALL(cuDevicePrimaryCtxReset_v2(device)))
        return;
    reset = primary[device];
    must(CALL(cuDevicePrimaryCtxRelease_v2(device)), "cuDevicePrimaryCtxRelease_v2");
    must(CALL(cuDevicePrimaryCtxRetain(&context, device)), "cuDevicePrimaryCtxRetain");
}

static void read_arguments(int count, char **values) {
    static const struct option options[] = {
        {"calls", required_argument, NULL, 'c'},   {"threads", required_argument, NULL, 't'},
        {"devices", required_argument, NULL, 'd'}, {"quiet-points", required_argument, NULL, 'q'},
        {"max-live", required_argument, NULL, 'l'}, {"seed", required_argument, NULL, 's'},
        {"wait", no_argument, NULL, 'w'},          {NULL, 0, NULL, 0},
    };
    for (int option; (option = getopt_long(count, values, "", options, NULL)) != -1;) {
        switch (option) {
        case 'c': calls = strtoull(optarg, NULL, 10); break;
        case 't': threads = atoi(optarg); break;
        case 'd': devices = atoi(optarg); break;
        case 'q': quiet_points = atoi(optarg); break;
        case 'l': max_live = atoi(optarg); break;
        case 's': seed = strtoull(optarg, NULL, 10); break;
        case 'w': wait_for_line = 1; break;
        default: exit(2);
        }
    }
    if (optind != count || threads < 1 || devices < 1 || devices > MAX_DEVICES ||
        quiet_points < 1 || max_live < 1 || max_live > MAX_LIVE) {
        fprintf(stderr, "driver_calls: arguments out of range\n");
        exit(2);
    }
}

int main(int count, char **values) {
    read_arguments(count, values);
    printf("{\"ready\":true}\n");
    fflush(stdout);
    wait_line();

    struct worker self = {.random = seed * 1000};
    struct worker *w = &self;
    int found = 0;
    must(cuInit(0), "cuInit");
    must(cuDeviceGetCount(&found), "cuDeviceGetCount");
    if (found < devices) must(CUDA_ERROR_INVALID_DEVICE, "too few devices");
    for (int i = 0; i < devices; i++) {
        must(CALL(cuDevicePrimaryCtxRetain(&primary[i], i)), "cuDevicePrimaryCtxRetain");
        must(cuDeviceGetDefaultMemPool(&pools[i], i), "cuDeviceGetDefaultMemPool");
    }
    pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
    workers = calloc((size_t)threads, sizeof *workers);
    for (int i = 0; i < threads; i++) {
        workers[i].random = seed * 1000 + (uint64_t)i + 1;
        pthread_create(&workers[i].thread, NULL, work, &workers[i]);
    }
    for (int round = 1; round <= quiet_points; round++) {
        pthread_barrier_wait(&barrier);
        reset = NULL;
        if (round % 3 == 2) reset_device(w, round % devices);
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        report(round, w);
        pthread_barrier_wait(&barrier);
    }
    for (int i = 0; i < threads; i++) pthread_join(workers[i].thread, NULL);
    report(quiet_points + 1, w);
    printf("{\"done\":true}\n");
    return 0;
}
