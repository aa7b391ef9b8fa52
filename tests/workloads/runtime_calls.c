/* Random calls of every entry point of the CUDA runtime that allocates or frees, from several threads
 * on several devices: sizes from 1 B to 1 GiB, frees in random order, failing calls, devices that are
 * reset with their memory. What is allocated is also counted here, and has to be what the simulated
 * driver counts.
 *
 *     cc -O1 -pthread -I tests/cuda-sim runtime_calls.c LIBRARIES/libcudart.so.N LIBRARIES/libcuda.so.1 -Wl,-rpath,LIBRARIES
 *
 * With FILE NAME OTHER the file gets a second name at the fifth quiet point, by which this process maps
 * it once more: a library that is known by its name is known from then on. Another one is loaded, so that
 * the loader tells that there is something new. */
#define _GNU_SOURCE
#include "sim.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

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
cudaError_t cudaMallocAsync_ptsz(void **, size_t, void *);
cudaError_t cudaMallocFromPoolAsync(void **, size_t, CUmemoryPool, void *);
cudaError_t cudaMallocFromPoolAsync_ptsz(void **, size_t, CUmemoryPool, void *);
cudaError_t cudaDeviceGetDefaultMemPool(CUmemoryPool *, int);
cudaError_t cudaMemPoolTrimTo(CUmemoryPool, size_t);
cudaError_t cudaFree(void *);
cudaError_t cudaFreeAsync(void *, void *);
cudaError_t cudaFreeAsync_ptsz(void *, void *);
cudaError_t cudaMallocArray(void **, const struct channels *, size_t, size_t, unsigned);
cudaError_t cudaMalloc3DArray(void **, const struct channels *, struct extent, unsigned);
cudaError_t cudaFreeArray(void *);
cudaError_t cudaMallocMipmappedArray(void **, const struct channels *, struct extent, unsigned, unsigned);
cudaError_t cudaFreeMipmappedArray(void *);
cudaError_t cudaMallocHost(void **, size_t);
cudaError_t cudaHostAlloc(void **, size_t, unsigned);
cudaError_t cudaFreeHost(void *);
cudaError_t cudaHostRegister(void *, size_t, unsigned);
cudaError_t cudaHostUnregister(void *);
cudaError_t cudaIpcOpenMemHandle(void **, struct ipc_handle, unsigned);
cudaError_t cudaIpcCloseMemHandle(void *);
cudaError_t cudaImportExternalMemory(void **, const void *);
cudaError_t cudaDestroyExternalMemory(void *);

enum kind { LINEAR, ARRAY, MIPMAPPED, HOST, REGISTERED, IPC, EXTERNAL, KINDS };

struct item {
    enum kind kind;
    int device;
    void *address;
    uint64_t size;
};

struct state {
    int device; /* the current one */
};

#include "random_calls.h"

static int reset; /* the device that was reset at this quiet point, -1: none */
static const char *file, *name, *other;

static enum account account_of(int kind) {
    switch ((enum kind)kind) {
    case LINEAR: case ARRAY: case MIPMAPPED: return OF_DEVICE;
    case HOST: case REGISTERED: return PINNED;
    default: return IMPORTED;
    }
}

/* --- allocating --- */

static cudaError_t make_linear(struct worker *w, struct item *item) {
    size_t pitch = 0, height = 1 + next(w) % 64, width = 1 + item->size / height;
    struct pitched_pointer pitched = {0};
    CUmemoryPool pool;
    cudaError_t result;
    switch (pick(w, 9)) {
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
    case 4: return CALL(cudaMallocAsync_ptsz(&item->address, item->size, NULL));
    case 5:
        result = CALL(cudaDeviceGetDefaultMemPool(&pool, item->device));
        if (result) return result;
        return pick(w, 2) ? CALL(cudaMallocFromPoolAsync(&item->address, item->size, pool, NULL))
                          : CALL(cudaMallocFromPoolAsync_ptsz(&item->address, item->size, pool, NULL));
    case 6:
        /* Nothing is a size too. */
        if (CALL(cudaMalloc(&item->address, 0)) || item->address) die("0 bytes have an address");
        return CALL(cudaMalloc(&item->address, item->size));
    default: return CALL(cudaMalloc(&item->address, item->size));
    }
}

static cudaError_t make_array(struct worker *w, struct item *item) {
    static const struct { int bits, kind; } formats[] = {
        {8, 0}, {16, 0}, {32, 0}, {8, 1}, {16, 1}, {32, 1}, {16, 2}, {32, 2},
    };
    int format = pick(w, 8), used = 1 << pick(w, 3), layered = pick(w, 2);
    unsigned levels = 1 + (unsigned)pick(w, 14);
    uint64_t element = (uint64_t)used * (uint64_t)formats[format].bits / 8;
    struct channels channels = {.kind = formats[format].kind};
    for (int i = 0; i < used; i++) channels.bits[i] = formats[format].bits;
    struct extent extent = {1 + next(w) % 2048, next(w) % 256, next(w) % 32};
    size_t width = extent.width, height = extent.height, depth = extent.depth;
    if (item->kind == MIPMAPPED) {
        item->size = elements(width, height, depth, levels, layered) * element;
        return CALL(cudaMallocMipmappedArray(&item->address, &channels, extent, levels,
                                             (unsigned)layered));
    }
    if (pick(w, 2)) {
        item->size = elements(width, height, 0, 1, 0) * element;
        return CALL(cudaMallocArray(&item->address, &channels, width, height, 0));
    }
    item->size = elements(width, height, depth, 1, 0) * element;
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

static void allocate(struct worker *w) {
    static const enum kind kinds[] = {LINEAR, LINEAR, LINEAR, LINEAR,     LINEAR, ARRAY,
                                      HOST,   HOST,   IPC,    REGISTERED, EXTERNAL, MIPMAPPED};
    struct item item = {.kind = kinds[pick(w, sizeof kinds / sizeof *kinds)],
                        .device = w->is.device, .size = pick_size(w)};
    struct ipc_handle ipc = {{0}};
    cudaError_t result;
    switch (item.kind) {
    case LINEAR: result = make_linear(w, &item); break;
    case ARRAY: case MIPMAPPED: result = make_array(w, &item); break;
    case HOST:
        result = pick(w, 2) ? CALL(cudaMallocHost(&item.address, item.size))
                            : CALL(cudaHostAlloc(&item.address, item.size, 0));
        break;
    case REGISTERED: result = make_registered(w, &item); break;
    case IPC: result = CALL(cudaIpcOpenMemHandle(&item.address, ipc, 1)); break;
    default: result = CALL(cudaImportExternalMemory(&item.address, &ipc));
    }
    if (!result) keep(w, item);
}

/* --- freeing --- */

static cudaError_t release(struct worker *w, const struct item *item) {
    cudaError_t result;
    switch (item->kind) {
    case LINEAR:
        switch (pick(w, 4)) {
        case 0: return CALL(cudaFreeAsync(item->address, NULL));
        case 1: return CALL(cudaFreeAsync_ptsz(item->address, NULL));
        default: return CALL(cudaFree(item->address));
        }
    case ARRAY: return CALL(cudaFreeArray(item->address));
    case MIPMAPPED: return CALL(cudaFreeMipmappedArray(item->address));
    case HOST: return CALL(cudaFreeHost(item->address));
    case REGISTERED:
        result = CALL(cudaHostUnregister(item->address));
        if (!result) munmap(item->address, item->size);
        return result;
    case IPC: return CALL(cudaIpcCloseMemHandle(item->address));
    default: return CALL(cudaDestroyExternalMemory(item->address));
    }
}

static int let_go(struct worker *w, struct item *item, int towards_end) {
    (void)towards_end;
    return !release(w, item);
}

/* A free that has to fail: by the entry point of another kind. */
static void free_wrongly(struct worker *w) {
    struct item item = w->items[pick(w, w->live)];
    item.kind = (item.kind + 1 + (enum kind)pick(w, KINDS - 1)) % KINDS;
    if (item.kind == REGISTERED) item.size = 0; /* release unmaps what it could unregister */
    if (!release(w, &item)) die("a wrong free went well");
}

/* --- the run --- */

static void choose(struct worker *w, int device) {
    if (!CALL(cudaSetDevice(device))) w->is.device = device;
}

/* At first the device is the one that every thread begins with. */
static void begin_round(struct worker *w, int round) {
    if (round > 1) choose(w, w->is.device);
}

static void one_step(struct worker *w) {
    int step = pick(w, 200), device = pick(w, devices);
    CUmemoryPool pool;
    if (step < 7) choose(w, device);
    else if (step < 8) choose(w, devices + device); /* which there is not */
    else if (step < 9) {
        if (!CALL(cudaDeviceGetDefaultMemPool(&pool, device))) CALL(cudaMemPoolTrimTo(pool, pick_size(w)));
    } else if (step < 12 && w->live) free_wrongly(w);
    else if (w->live >= max_live || (w->live && step < 104)) free_one(w);
    else allocate(w);
}

static void end_round(struct worker *w) { (void)w; }

/* A reset takes the device's memory, but not that of the host. */
static int is_gone(const struct item *item) {
    return item->device == reset && account_of((int)item->kind) == OF_DEVICE;
}

/* Maps the file, by its second name, where nothing of it is known by another. */
static void map_by_name(void) {
    if (link(file, name)) die("cannot link the library");
    int descriptor = open(name, O_RDONLY);
    void *low = mmap((void *)0x10000000, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED_NOREPLACE,
                     descriptor, 0);
    if (low == MAP_FAILED) die("cannot map the library");
    if (!dlopen(other, RTLD_NOW)) die(dlerror());
}

static void change_at_quiet_point(struct worker *w, int round) {
    int device = round % devices;
    reset = -1;
    if (round % 3 == 2 && !CALL(cudaSetDevice(device)) && !CALL(cudaDeviceReset())) reset = device;
    if (round == 5 && name) map_by_name();
}

int main(int count, char **values) {
    begin(count, values);
    if (count - optind == 3)
        file = values[optind], name = values[optind + 1], other = values[optind + 2];
    struct worker self = {.random = seed * 1000};
    int found = 0;
    if (cudaGetDeviceCount(&found) || found < devices) die("too few devices");
    return run(&self);
}
