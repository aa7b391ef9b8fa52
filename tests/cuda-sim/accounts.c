/* The simulated driver's accounts: what each device has in use, which addresses are free, and what
 * stands where. */
#define _GNU_SOURCE
#include "driver.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct device devices[MAX_DEVICES];
uint64_t imported;
static uint64_t pinned;
static uint64_t alloc_calls, free_calls, failed_calls;

void lock_driver(void) {
    configure();
    pthread_mutex_lock(&lock);
}

void unlock_driver(void) { pthread_mutex_unlock(&lock); }

CUresult count_alloc(CUresult result) {
    alloc_calls++;
    failed_calls += result != CUDA_SUCCESS;
    return result;
}

CUresult count_free(CUresult result) {
    free_calls++;
    failed_calls += result != CUDA_SUCCESS;
    return result;
}

/* --- the simulator's own count: the authority that tests compare with --- */

static uint64_t read_locked(const uint64_t *value) {
    lock_driver();
    uint64_t copy = *value;
    unlock_driver();
    return copy;
}

EXPORT uint64_t cudasim_allocated_bytes(int device) {
    if (device < 0 || device >= MAX_DEVICES) return 0;
    return read_locked(&devices[device].allocated);
}
EXPORT uint64_t cudasim_pinned_bytes(void) { return read_locked(&pinned); }
EXPORT uint64_t cudasim_imported(void) { return read_locked(&imported); }
EXPORT uint64_t cudasim_alloc_calls(void) { return read_locked(&alloc_calls); }
EXPORT uint64_t cudasim_free_calls(void) { return read_locked(&free_calls); }
EXPORT uint64_t cudasim_failed_calls(void) { return read_locked(&failed_calls); }

/* --- bytes --- */

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }
static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

uint64_t kept_by_pool(int device) {
    const struct pool *pool = &devices[device].pool;
    return pool->reserved - pool->used;
}

void trim_pool(struct pool *pool, uint64_t keep) {
    pool->reserved = larger(pool->used, smaller(pool->reserved, keep));
}

/* Tells the simulated libnvidia-ml of other processes what this one has of a device, as a real driver
 * would: a file in CUDASIM_PROCESSES by the pid, one number for each device. */
static void publish(int device) {
    static volatile uint64_t *published;
    static pid_t owner;
    const char *folder = getenv("CUDASIM_PROCESSES");
    if (!folder) return;
    if (owner != getpid()) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%d", folder, getpid());
        int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        size_t size = MAX_DEVICES * sizeof(uint64_t);
        if (file < 0 || ftruncate(file, (off_t)size)) return;
        void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        if (map == MAP_FAILED) return;
        published = map;
        owner = getpid();
    }
    published[device] = devices[device].allocated + CONTEXT_BYTES;
}

CUresult charge(int device, uint64_t size) {
    struct device *d = &devices[device];
    if (size > d->capacity - d->allocated) return CUDA_ERROR_OUT_OF_MEMORY;
    d->allocated += size;
    /* What the pool keeps back gives way. */
    trim_pool(&d->pool, d->pool.used + (d->capacity - d->allocated));
    publish(device);
    return CUDA_SUCCESS;
}

void discharge(int device, uint64_t size) {
    devices[device].allocated -= size;
    publish(device);
}

CUresult charge_pool(int device, uint64_t size) {
    struct pool *pool = &devices[device].pool;
    CUresult result = charge(device, size);
    if (result) return result;
    pool->used += size;
    pool->reserved = larger(pool->reserved, pool->used);
    pool->used_high = larger(pool->used_high, pool->used);
    pool->reserved_high = larger(pool->reserved_high, pool->reserved);
    return CUDA_SUCCESS;
}

void discharge_pool(int device, uint64_t size) {
    struct pool *pool = &devices[device].pool;
    discharge(device, size);
    pool->used -= size;
    trim_pool(pool, pool->threshold);
}

/* --- addresses: the free ranges of each arena in order, never two that touch --- */

struct range {
    uint64_t start, end;
};

struct arena {
    struct range *ranges; /* NULL until it is first used */
    size_t count, room;
};

static struct arena arenas[ARENAS];

static struct range whole_arena(int arena) {
    /* Addresses of the first version of the API have 32 bits. */
    if (arena == ARENA_V1) return (struct range){1ull << 31, 1ull << 32};
    int place = arena == ARENA_IMPORTED ? MAX_DEVICES : arena; /* behind the last device */
    uint64_t start = DEVICE_BASE + ((uint64_t)place << DEVICE_SHIFT);
    return (struct range){start, start + (1ull << DEVICE_SHIFT)};
}

static int arena_of(uint64_t address) {
    if (address_is_device(address)) return address_device(address);
    return address < 1ull << 32 ? ARENA_V1 : ARENA_IMPORTED;
}

static void insert_range(struct arena *arena, size_t at, struct range range) {
    if (arena->count == arena->room) {
        arena->room = arena->room ? arena->room * 2 : 64;
        arena->ranges = realloc(arena->ranges, arena->room * sizeof *arena->ranges);
    }
    memmove(&arena->ranges[at + 1], &arena->ranges[at],
            (arena->count - at) * sizeof *arena->ranges);
    arena->ranges[at] = range;
    arena->count++;
}

static void remove_range(struct arena *arena, size_t at) {
    arena->count--;
    memmove(&arena->ranges[at], &arena->ranges[at + 1],
            (arena->count - at) * sizeof *arena->ranges);
}

static uint64_t round_up(uint64_t value, uint64_t align) {
    return (value + align - 1) / align * align;
}

uint64_t take_addresses(int number, uint64_t size, uint64_t align) {
    struct arena *arena = &arenas[number];
    if (!arena->ranges) insert_range(arena, 0, whole_arena(number));
    size = round_up(size, SMALL_ALIGN);
    size_t best = arena->count;
    for (size_t i = 0; i < arena->count; i++) {
        const struct range *range = &arena->ranges[i];
        uint64_t start = round_up(range->start, align);
        if (start > range->end || range->end - start < size) continue;
        if (best == arena->count ||
            range->end - range->start < arena->ranges[best].end - arena->ranges[best].start)
            best = i;
    }
    if (best == arena->count) return 0;
    struct range found = arena->ranges[best];
    uint64_t start = round_up(found.start, align);
    struct range before = {found.start, start}, after = {start + size, found.end};
    remove_range(arena, best);
    if (after.start < after.end) insert_range(arena, best, after);
    if (before.start < before.end) insert_range(arena, best, before);
    return start;
}

void give_addresses(uint64_t address, uint64_t size) {
    struct arena *arena = &arenas[arena_of(address)];
    struct range range = {address, address + round_up(size, SMALL_ALIGN)};
    size_t low = 0, high = arena->count; /* the first range behind the address */
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (arena->ranges[middle].start < address) low = middle + 1;
        else high = middle;
    }
    if (low < arena->count && arena->ranges[low].start == range.end) {
        range.end = arena->ranges[low].end;
        remove_range(arena, low);
    }
    if (low && arena->ranges[low - 1].end == range.start)
        arena->ranges[low - 1].end = range.end;
    else
        insert_range(arena, low, range);
}

/* --- blocks: a hash table by address with linear probing, at most half full --- */

static struct block *blocks;
static size_t block_room, block_count;

static size_t home_of(uint64_t address) {
    return (size_t)((address >> 4) * 0x9e3779b97f4a7c15ull >> 32) & (block_room - 1);
}

static void place_block(struct block block) {
    size_t at = home_of(block.address);
    while (blocks[at].kind) at = (at + 1) & (block_room - 1);
    blocks[at] = block;
}

void add_block(struct block block) {
    if ((block_count + 1) * 2 > block_room) {
        struct block *old = blocks;
        size_t old_room = block_room;
        block_room = old_room ? old_room * 2 : 1024;
        blocks = calloc(block_room, sizeof *blocks);
        for (size_t i = 0; i < old_room; i++)
            if (old[i].kind) place_block(old[i]);
        free(old);
    }
    place_block(block);
    block_count++;
    if (block.kind == BLOCK_HOST || block.kind == BLOCK_REGISTERED) pinned += block.size;
    if (block.kind == BLOCK_IPC || block.kind == BLOCK_EXTERNAL) imported++;
}

struct block *find_block(uint64_t address) {
    if (!block_room) return NULL;
    size_t at = home_of(address);
    for (; blocks[at].kind; at = (at + 1) & (block_room - 1))
        if (blocks[at].address == address) return &blocks[at];
    return NULL;
}

struct block *find_block_around(uint64_t address) {
    for (size_t i = 0; i < block_room; i++)
        if (blocks[i].kind && address - blocks[i].address < blocks[i].size) return &blocks[i];
    return NULL;
}

/* Moves later entries up, so that the table needs no marks for removed ones. */
static void remove_block(struct block *block) {
    size_t mask = block_room - 1, hole = (size_t)(block - blocks);
    for (size_t at = (hole + 1) & mask; blocks[at].kind; at = (at + 1) & mask) {
        size_t distance = (at - home_of(blocks[at].address)) & mask;
        if (distance >= ((at - hole) & mask)) {
            blocks[hole] = blocks[at];
            hole = at;
        }
    }
    blocks[hole].kind = BLOCK_EMPTY;
    block_count--;
}

void drop_block(struct block *block) {
    switch (block->kind) {
    case BLOCK_EMPTY:
        return;
    case BLOCK_POOL:
        discharge_pool(block->device, block->size);
        give_addresses(block->address, block->size);
        break;
    case BLOCK_DEVICE:
    case BLOCK_ARRAY:
    case BLOCK_MIPMAPPED:
        discharge(block->device, block->size);
        give_addresses(block->address, block->size);
        break;
    case BLOCK_HOST:
    case BLOCK_REGISTERED:
        pinned -= block->size;
        break;
    case BLOCK_IPC:
    case BLOCK_EXTERNAL:
        imported--;
        give_addresses(block->address, block->size);
        break;
    }
    remove_block(block);
}

void drop_blocks_of(const struct context *context) {
    for (size_t i = 0; i < block_room;) {
        /* Another block may have moved here. */
        if (blocks[i].kind && blocks[i].context == context) drop_block(&blocks[i]);
        else i++;
    }
}
