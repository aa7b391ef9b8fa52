/* Random calls of every entry point of the CUDA runtime that allocates or frees, from several threads
 * on several devices: sizes from 1 B to 1 GiB, frees in random order, failing calls, devices that are
 * reset with their memory. What is allocated is also counted here, and has to be what the simulated
 * driver counts.
 *
 *     cc -O1 -pthread -I tests/cuda-sim runtime_calls.c LIBRARIES/libcudart.so.N LIBRARIES/libcuda.so.1 -Wl,-rpath,LIBRARIES
 *
 * Prints and waits like driver_calls.c. */
#define _GNU_SOURCE
#include "sim.h"

#include <getopt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

typedef int cudaError_t;
struct extent { size_t width, height, depth; };
struct pitched_pointer { void *pointer; size_t pitch, width, height; };
struct channels { int bits[4], kind; };
struct ipc_handle { char bytes[64]; };

cudaError_t cudaGetDeviceCount(int *);
cudaError_t cudaSetDevice(int);
cudaError_t cudaDeviceReset(void);
cudaError_t cudaMalloc(void **, size_t);
cudaError_t cudaMallocPitch(void **, size_t *, size_t, size_t);
cudaError_t cudaMalloc3D(struct pitched_pointer *, struct extent);
cudaError_t cudaMallocManaged(void **, size_t, unsigned);
cudaError_t cudaMallocAsync(void **, size_t, void *);
cudaError_t cudaMallocFromPoolAsync(void **, size_t, CUmemoryPool, void *);
cudaError_t cudaDeviceGetDefaultMemPool(CUmemoryPool *, int);
cudaError_t cudaFree(void *);
cudaError_t cudaFreeAsync(void *, void *);
cudaError_t cudaMallocArray(void **, const struct channels *, size_t, size_t, unsigned);
cudaError_t cudaMalloc3DArray(void **, const struct channels *, struct extent, unsigned);
cudaError_t cudaFreeArray(void *);
cudaError_t cudaMallocHost(void **, size_t);
cudaError_t cudaHostAlloc(void **, size_t, unsigned);
cudaError_t cudaFreeHost(void *);
cudaError_t cudaHostRegister(void *, size_t, unsigned);
cudaError_t cudaHostUnregister(void *);
cudaError_t cudaIpcOpenMemHandle(void **, struct ipc_handle, unsigned);
cudaError_t cudaIpcCloseMemHandle(void *);
uint64_t cudasim_allocated_bytes(int);
uint64_t cudasim_pinned_bytes(void);
uint64_t cudasim_imported(void);

enum kind { LINEAR, ARRAY, HOST, REGISTERED, IPC, KINDS };

struct item {
    enum kind kind;
    int device;
    void *address;
    uint64_t size;
};

enum { MAX_LIVE = 1024 };

struct worker {
    pthread_t thread;
    uint64_t random;
    uint64_t calls, failed;
    struct item items[MAX_LIVE];
    int live;
    int device; /* the current one */
};

static uint64_t calls = 1000000, seed = 1;
static int threads = 4, devices = 2, quiet_points = 10, max_live = 200, wait_for_line;
static struct worker *workers;
static pthread_barrier_t barrier;
static int reset; /* the device that was reset at this quiet point, -1: none */

/* What has to be in use, and how often device memory and page-locked memory were allocated. */
static _Atomic uint64_t bytes[MAX_DEVICES], pinned, imported, device_blocks, pinned_blocks;

static uint64_t next(struct worker *w) { /* splitmix64 */
    uint64_t z = w->random += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static int pick(struct worker *w, int choices) { return (int)(next(w) % (uint64_t)choices); }

static uint64_t pick_size(struct worker *w) {
    int power = pick(w, 8) ? pick(w, 21) : 21 + pick(w, 10);
    return 1 + next(w) % (1ull << power);
}

static cudaError_t counted(struct worker *w, cudaError_t result) {
    w->calls++;
    w->failed += result != 0;
    return result;
}
#define CALL(call) counted(w, call)

/* --- allocating --- */

static cudaError_t make_linear(struct worker *w, struct item *item) {
    size_t pitch = 0, height = 1 + next(w) % 64, width = 1 + item->size / height;
    struct pitched_pointer pitched = {0};
    CUmemoryPool pool;
    cudaError_t result;
    switch (pick(w, 6)) {
    case 0:
        result = CALL(cudaMallocPitch(&item->address, &pitch, width, height));
        item->size = pitch * height;
        return result;
    case 1:
        result = CALL(cudaMalloc3D(&pitched, (struct extent){1 + width / 3, height, 3}));
        item->address = pitched.pointer;
        item->size = pitched.pitch * height * 3;
        return result;
    case 2: return CALL(cudaMallocManaged(&item->address, item->size, 1));
    case 3: return CALL(cudaMallocAsync(&item->address, item->size, NULL));
    case 4:
        result = CALL(cudaDeviceGetDefaultMemPool(&pool, item->device));
        return result ? result
                      : CALL(cudaMallocFromPoolAsync(&item->address, item->size, pool, NULL));
    default: return CALL(cudaMalloc(&item->address, item->size));
    }
}

static cudaError_t make_array(struct worker *w, struct item *item) {
    static const struct { int bits, kind; } formats[] = {
        {8, 0}, {16, 0}, {32, 0}, {8, 1}, {16, 1}, {32, 1}, {16, 2}, {32, 2},
    };
    int format = pick(w, 8), used = 1 << pick(w, 3);
    struct channels channels = {.kind = formats[format].kind};
    for (int i = 0; i < used; i++) channels.bits[i] = formats[format].bits;
    struct extent extent = {1 + next(w) % 2048, next(w) % 256, next(w) % 32};
    item->size = extent.width * (extent.height ? extent.height : 1) * (uint64_t)used *
                 (uint64_t)formats[format].bits / 8;
    if (pick(w, 2))
        return CALL(cudaMallocArray(&item->address, &channels, extent.width, extent.height, 0));
    item->size *= extent.depth ? extent.depth : 1;
    return CALL(cudaMalloc3DArray(&item->address, &channels, extent, 0));
}

static cudaError_t make_registered(struct worker *w, struct item *item) {
    void *pages = mmap(NULL, item->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) return 2;
    item->address = pages;
    cudaError_t result = CALL(cudaHostRegister(pages, item->size, 0));
    if (result) munmap(pages, item->size);
    return result;
}

/* Books an item: in, or out again. */
static void book(const struct item *item, int in) {
    switch (item->kind) {
    case LINEAR: case ARRAY:
        bytes[item->device] += in ? item->size : -item->size;
        device_blocks += in != 0;
        break;
    case HOST: case REGISTERED:
        pinned += in ? item->size : -item->size;
        pinned_blocks += in != 0;
        break;
    default: imported += in ? 1 : -1ull;
    }
}

static void allocate(struct worker *w) {
    static const enum kind kinds[] = {LINEAR, LINEAR, LINEAR, LINEAR, LINEAR, ARRAY, HOST,
                                      HOST,   REGISTERED, IPC};
    struct item item = {.kind = kinds[pick(w, sizeof kinds / sizeof *kinds)], .device = w->device,
                        .size = pick_size(w)};
    struct ipc_handle ipc = {{0}};
    cudaError_t result;
    switch (item.kind) {
    case LINEAR: result = make_linear(w, &item); break;
    case ARRAY: result = make_array(w, &item); break;
    case HOST:
        result = pick(w, 2) ? CALL(cudaMallocHost(&item.address, item.size))
                            : CALL(cudaHostAlloc(&item.address, item.size, 0));
        break;
    case REGISTERED: result = make_registered(w, &item); break;
    default: result = CALL(cudaIpcOpenMemHandle(&item.address, ipc, 1));
    }
    if (result) return;
    book(&item, 1);
    w->items[w->live++] = item;
}

/* --- freeing --- */

static cudaError_t let_go(struct worker *w, const struct item *item) {
    cudaError_t result;
    switch (item->kind) {
    case LINEAR:
        return pick(w, 2) ? CALL(cudaFree(item->address)) : CALL(cudaFreeAsync(item->address, NULL));
    case ARRAY: return CALL(cudaFreeArray(item->address));
    case HOST: return CALL(cudaFreeHost(item->address));
    case REGISTERED:
        result = CALL(cudaHostUnregister(item->address));
        if (!result) munmap(item->address, item->size);
        return result;
    default: return CALL(cudaIpcCloseMemHandle(item->address));
    }
}

static void forget(struct worker *w, int at) {
    book(&w->items[at], 0);
    w->items[at] = w->items[--w->live];
}

static void free_one(struct worker *w) {
    int at = pick(w, w->live);
    if (!let_go(w, &w->items[at])) forget(w, at);
}

/* A free that has to fail: by the entry point of another kind. */
static void free_wrongly(struct worker *w) {
    struct item item = w->items[pick(w, w->live)];
    item.kind = (item.kind + 1 + (enum kind)pick(w, KINDS - 1)) % KINDS;
    if (item.kind == REGISTERED) item.size = 0; /* let_go unmaps what it could unregister */
    if (!let_go(w, &item)) {
        fprintf(stderr, "runtime_calls: a wrong free went well\n");
        exit(1);
    }
}

/* --- the run --- */

static void one_step(struct worker *w) {
    int step = pick(w, 100), device = pick(w, devices);
    if (step < 4) {
        if (!CALL(cudaSetDevice(device))) w->device = device;
    } else if (step < 6 && w->live) free_wrongly(w);
    else if (w->live >= max_live || (w->live && step < 52)) free_one(w);
    else allocate(w);
}

/* What a reset took: device memory, but not that of the host. */
static void forget_items_of(struct worker *w, int device) {
    for (int i = 0; i < w->live;)
        if (w->items[i].device == device && w->items[i].kind <= ARRAY) forget(w, i);
        else i++;
}

static void *work(void *argument) {
    struct worker *w = argument;
    uint64_t quota = calls / (uint64_t)(quiet_points * threads);
    for (int round = 1; round <= quiet_points; round++) {
        while (w->calls < quota * (uint64_t)round) one_step(w);
        pthread_barrier_wait(&barrier);
        /* The main thread may reset a device here. */
        pthread_barrier_wait(&barrier);
        if (reset >= 0) forget_items_of(w, reset);
        pthread_barrier_wait(&barrier);
        /* The main thread reports here. */
        pthread_barrier_wait(&barrier);
    }
    while (w->live)
        if (!let_go(w, &w->items[w->live - 1])) forget(w, w->live - 1);
    return NULL;
}

static void wait_line(void) {
    int letter;
    while (wait_for_line && (letter = getchar()) != EOF && letter != '\n')
        ;
}

static void expect(const char *what, uint64_t found, uint64_t wanted) {
    if (found == wanted) return;
    fprintf(stderr, "runtime_calls: %s: the driver counts %llu, the workload %llu\n", what,
            (unsigned long long)found, (unsigned long long)wanted);
    exit(1);
}

static void report(int number) {
    uint64_t made = 0, failed = 0;
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

static void read_arguments(int count, char **values) {
    static const struct option options[] = {
        {"calls", required_argument, NULL, 'c'}, {"seed", required_argument, NULL, 's'},
        {"wait", no_argument, NULL, 'w'},        {NULL, 0, NULL, 0},
    };
    for (int option; (option = getopt_long(count, values, "", options, NULL)) != -1;) {
        switch (option) {
        case 'c': calls = strtoull(optarg, NULL, 10); break;
        case 's': seed = strtoull(optarg, NULL, 10); break;
        case 'w': wait_for_line = 1; break;
        default: exit(2);
        }
    }
}

int main(int count, char **values) {
    read_arguments(count, values);
    printf("{\"ready\":true}\n");
    fflush(stdout);
    wait_line();

    int found = 0;
    if (cudaGetDeviceCount(&found) || found < devices) {
        fprintf(stderr, "runtime_calls: too few devices\n");
        return 1;
    }
    pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
    workers = calloc((size_t)threads, sizeof *workers);
    for (int i = 0; i < threads; i++) {
        workers[i].random = seed * 1000 + (uint64_t)i + 1;
        pthread_create(&workers[i].thread, NULL, work, &workers[i]);
    }
    for (int round = 1; round <= quiet_points; round++) {
        pthread_barrier_wait(&barrier);
        reset = -1;
        if (round % 3 == 2 && !cudaSetDevice(round % devices) && !cudaDeviceReset())
            reset = round % devices;
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        report(round);
        pthread_barrier_wait(&barrier);
    }
    for (int i = 0; i < threads; i++) pthread_join(workers[i].thread, NULL);
    report(quiet_points + 1);
    printf("{\"done\":true}\n");
    return 0;
}
