/* What the sources of the simulated driver share. Everything that is declared here and changes
 * something is to be called with the lock held, except `configure`. */
#ifndef CUDASIM_DRIVER_H
#define CUDASIM_DRIVER_H

#include "sim.h"

struct context {
    int device;
    int primary;
    int alive;
    int references; /* how often a primary context is retained */
    struct context *memory; /* whose memory is allocated in it: of a green context the primary one's */
    struct context *next;
};

/* What stands at an address, by who may free it. */
enum kind {
    BLOCK_EMPTY, /* no block */
    BLOCK_DEVICE,
    BLOCK_POOL,
    BLOCK_ARRAY,
    BLOCK_MIPMAPPED,
    BLOCK_HOST,
    BLOCK_REGISTERED,
    BLOCK_IPC,
    BLOCK_EXTERNAL,
};

struct block {
    uint64_t address;
    uint64_t size;
    struct context *context; /* that takes the block with it; NULL: none does */
    int device;
    enum kind kind;
};

/* The memory pool of a device. Freed memory stays reserved up to the release threshold, until it is
 * trimmed or needed elsewhere. */
struct pool {
    uint64_t used, used_high;
    uint64_t reserved, reserved_high;
    uint64_t threshold;
    int reuse[3];
};

struct device {
    uint64_t capacity;
    uint64_t allocated; /* what the process has, without what the pool keeps back */
    struct pool pool;
};

/* --- config.c --- */

extern int device_count;

/* Reads the environment, once. Any entry point may be the first that is called. */
void configure(void);
/* What the environment says cannot be used. */
int misconfigured(void);
/* The scripted result of this call, or 0. */
CUresult scripted(const char *call, uint64_t size);

/* --- accounts.c: devices, ranges of addresses, blocks --- */

extern struct device devices[MAX_DEVICES];

void lock_driver(void);
void unlock_driver(void);

/* The call counts, and `result` handed through. */
CUresult count_alloc(CUresult result);
CUresult count_free(CUresult result);
extern uint64_t imported;

/* Takes memory from a device, or out of memory. */
CUresult charge(int device, uint64_t size);
void discharge(int device, uint64_t size);
CUresult charge_pool(int device, uint64_t size);
void discharge_pool(int device, uint64_t size);
void trim_pool(struct pool *pool, uint64_t keep);
/* What a device's pool keeps back. */
uint64_t kept_by_pool(int device);

/* The range of addresses to take from. */
enum { ARENA_V1 = MAX_DEVICES, ARENA_IMPORTED, ARENAS };
#define SMALL_ALIGN 512ull
#define LARGE_ALIGN (2ull << 20)

/* A free range of addresses, the tightest there is; 0 if there is none. */
uint64_t take_addresses(int arena, uint64_t size, uint64_t align);
void give_addresses(uint64_t address, uint64_t size);

void add_block(struct block block);
/* The block that starts at an address, or NULL. */
struct block *find_block(uint64_t address);
/* The block that an address lies in, or NULL. Slow. */
struct block *find_block_around(uint64_t address);
/* Frees a block and settles every account it is in. */
void drop_block(struct block *block);
void drop_blocks_of(const struct context *context);

/* --- context.c --- */

/* The calling thread's context; NULL with the reason if it has none that is alive. */
struct context *current_context(CUresult *why);

#endif
