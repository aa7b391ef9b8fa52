/* The simulated driver's virtual memory management: physical memory counts from its creation until
 * nothing holds or maps it any more. It belongs to the process, not to a context. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>

/* A piece of physical memory. Its handle is its place in the table, counted from 1. */
struct physical {
    uint64_t size;
    int device;
    int imported; /* another process's, whose bytes do not count here */
    uint64_t holds, maps;
};

struct mapping {
    uint64_t address, size;
    CUmemHandle handle;
};

struct reservation {
    uint64_t address, size;
};

struct location {
    int type, id;
};

struct properties {
    int type, handle_types;
    struct location location;
};

enum { LOCATION_DEVICE = 1 };

static struct physical *physicals;
static size_t physical_count, physical_room;
static CUmemHandle *spare_handles; /* of freed memory; has room for all of them */
static size_t spare_count;
static struct mapping *mappings;
static size_t mapping_count, mapping_room;
static struct reservation *reservations;
static size_t reservation_count, reservation_room;

/* Makes room for one more entry. */
#define GROW(table, count, room)                                          \
    do {                                                                  \
        if ((count) == (room)) {                                          \
            (room) = (room) ? (room) * 2 : 64;                            \
            (table) = realloc((table), (room) * sizeof *(table));         \
        }                                                                 \
    } while (0)

static CUmemHandle add_physical(struct physical memory) {
    CUmemHandle handle;
    if (spare_count) {
        handle = spare_handles[--spare_count];
    } else {
        GROW(physicals, physical_count, physical_room);
        spare_handles = realloc(spare_handles, physical_room * sizeof *spare_handles);
        handle = ++physical_count;
    }
    physicals[handle - 1] = memory;
    imported += memory.imported != 0;
    return handle;
}

/* The memory of a handle that somebody still holds, or NULL. */
static struct physical *held(CUmemHandle handle) {
    if (!handle || handle > physical_count || !physicals[handle - 1].holds) return NULL;
    return &physicals[handle - 1];
}

static void drop_unused(CUmemHandle handle) {
    struct physical *memory = &physicals[handle - 1];
    if (memory->holds || memory->maps) return;
    if (memory->imported) imported--;
    else discharge(memory->device, memory->size);
    spare_handles[spare_count++] = handle;
}

/* --- physical memory --- */

EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const void *properties,
                                              int option) {
    (void)properties, (void)option;
    *granularity = LARGE_ALIGN;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuMemCreate(CUmemHandle *out, size_t size, const struct properties *properties,
                            unsigned long long flags) {
    (void)flags;
    lock_driver();
    CUresult result = scripted(__func__, size);
    if (!result && (!out || !properties || !size || size % LARGE_ALIGN))
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result && (properties->location.type != LOCATION_DEVICE || properties->location.id < 0 ||
                    properties->location.id >= device_count))
        result = CUDA_ERROR_INVALID_DEVICE;
    if (!result) result = charge(properties->location.id, size);
    if (!result)
        *out = add_physical((struct physical){size, properties->location.id, 0, 1, 0});
    count_alloc(result);
    unlock_driver();
    return result;
}
EXPORT CUresult cuMemImportFromShareableHandle(CUmemHandle *out, void *handle, int type) {
    (void)handle, (void)type;
    lock_driver();
    CUresult result = scripted(__func__, 0);
    if (!result && !out) result = CUDA_ERROR_INVALID_VALUE;
    if (!result) *out = add_physical((struct physical){LARGE_ALIGN, 0, 1, 1, 0});
    count_alloc(result);
    unlock_driver();
    return result;
}
EXPORT CUresult cuMemRelease(CUmemHandle handle) {
    lock_driver();
    CUresult result = scripted(__func__, 0);
    struct physical *memory = held(handle);
    if (!result && !memory) result = CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        memory->holds--;
        drop_unused(handle);
    }
    count_free(result);
    unlock_driver();
    return result;
}
/* The mapping that an address lies in, or NULL. */
static const struct mapping *mapping_around(uint64_t address) {
    for (size_t i = 0; i < mapping_count; i++)
        if (address - mappings[i].address < mappings[i].size) return &mappings[i];
    return NULL;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemHandle *out, void *address) {
    lock_driver();
    CUresult result = scripted(__func__, 0);
    const struct mapping *mapping = mapping_around((uint64_t)address);
    if (!result && (!out || !mapping)) result = CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        *out = mapping->handle;
        physicals[mapping->handle - 1].holds++;
    }
    count_alloc(result);
    unlock_driver();
    return result;
}

/* --- addresses --- */

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t alignment,
                                    CUdeviceptr wanted, unsigned long long flags) {
    (void)wanted, (void)flags;
    lock_driver();
    CUresult result = scripted(__func__, size);
    if (!result && (!out || !size || size % LARGE_ALIGN || (alignment & (alignment - 1))))
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        CUresult why;
        const struct context *context = current_context(&why);
        uint64_t address = 0;
        if (size >> DEVICE_SHIFT == 0) /* no device has more addresses */
            address = take_addresses(context ? context->device : 0, size,
                                     alignment > LARGE_ALIGN ? alignment : LARGE_ALIGN);
        if (address) {
            GROW(reservations, reservation_count, reservation_room);
            reservations[reservation_count++] = (struct reservation){address, size};
            *out = address;
        } else {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    unlock_driver();
    return result;
}

static int overlaps(const struct mapping *mapping, uint64_t address, uint64_t size) {
    return mapping->address < address + size && address < mapping->address + mapping->size;
}

static int is_mapped(uint64_t address, uint64_t size) {
    for (size_t i = 0; i < mapping_count; i++)
        if (overlaps(&mappings[i], address, size)) return 1;
    return 0;
}

static int is_reserved(uint64_t address, uint64_t size) {
    for (size_t i = 0; i < reservation_count; i++) {
        const struct reservation *r = &reservations[i];
        if (size <= r->size && address - r->address <= r->size - size) return 1;
    }
    return 0;
}

/* Only a whole reservation with nothing mapped in it. */
EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
    lock_driver();
    CUresult result = scripted(__func__, 0);
    size_t at = 0;
    while (at < reservation_count &&
           (reservations[at].address != address || reservations[at].size != size))
        at++;
    if (!result && (at == reservation_count || is_mapped(address, size)))
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        give_addresses(address, size);
        reservations[at] = reservations[--reservation_count];
    }
    unlock_driver();
    return result;
}

/* --- mappings --- */

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemHandle handle,
                         unsigned long long flags) {
    (void)flags;
    lock_driver();
    CUresult result = scripted(__func__, size);
    struct physical *memory = held(handle);
    if (!result && (!memory || offset || !size || size % LARGE_ALIGN || size > memory->size ||
                    address % LARGE_ALIGN || !is_reserved(address, size) ||
                    is_mapped(address, size)))
        result = CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        memory->maps++;
        GROW(mappings, mapping_count, mapping_room);
        mappings[mapping_count++] = (struct mapping){address, size, handle};
    }
    count_alloc(result);
    unlock_driver();
    return result;
}

/* How many bytes are mapped in a range by mappings that lie in it as a whole. */
static uint64_t mapped_within(uint64_t address, uint64_t size) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < mapping_count; i++) {
        const struct mapping *m = &mappings[i];
        if (m->size <= size && m->address - address <= size - m->size) bytes += m->size;
    }
    return bytes;
}

/* The range has to be filled by whole mappings. */
EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
    lock_driver();
    CUresult result = scripted(__func__, 0);
    if (!result && (!size || mapped_within(address, size) != size))
        result = CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; !result && i < mapping_count;) {
        if (!overlaps(&mappings[i], address, size)) {
            i++;
            continue;
        }
        CUmemHandle handle = mappings[i].handle;
        mappings[i] = mappings[--mapping_count];
        physicals[handle - 1].maps--;
        drop_unused(handle);
    }
    count_free(result);
    unlock_driver();
    return result;
}
EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const void *access, size_t count) {
    (void)address, (void)size, (void)access, (void)count;
    return CUDA_SUCCESS;
}
