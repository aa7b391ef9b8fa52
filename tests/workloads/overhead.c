// The hook of PyTorch's allocator in a library of its own: what a call of it costs, with nothing around it.
//
// Built as libc10.so. With -DENDBR the hook begins with `endbr64`, as where the toolchain marks targets of
// indirect branches; else with `push %rbp`, as in PyTorch's own builds.

#include <stdint.h>
#include <stdlib.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

// c10::reportMemoryUsageToProfiler(void*, int64_t, size_t, size_t, c10::Device). In assembler, so that its
// first instructions do not depend on the compiler.
#define report _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE

EXPORT void report(void *block, int64_t size, size_t allocated, size_t reserved, uint16_t device);

#ifdef ENDBR
#define ENTRY "endbr64\n"
#else
#define ENTRY ""
#endif

#define NAME "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"
__asm__(".text\n.globl " NAME "\n.type " NAME ", @function\n" NAME ":\n" ENTRY
        "push %rbp\nmov %rsp, %rbp\npop %rbp\nret\n.size " NAME ", . - " NAME "\n");

enum { BLOCK = 512, CUDA_0 = 1 };

static const uintptr_t POOL = 0x7f0000000000;
static size_t allocated;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void take(uint64_t index) {
    allocated += BLOCK;
    report((void *)(POOL + BLOCK * index), BLOCK, allocated, allocated, CUDA_0);
}

static void give_back(uint64_t index) {
    allocated -= BLOCK;
    report((void *)(POOL + BLOCK * index), -BLOCK, allocated, allocated, CUDA_0);
}

// Each returns the nanoseconds that `calls` reports took.
EXPORT uint64_t allocate(uint64_t calls) {
    uint64_t start = now();
    for (uint64_t i = 0; i < calls; i++) take(i);
    return now() - start;
}

EXPORT uint64_t release(uint64_t calls) {
    uint64_t start = now();
    for (uint64_t i = 0; i < calls; i++) give_back(i);
    return now() - start;
}

// Allocates and frees one block over and over for so many nanoseconds; returns how often.
EXPORT uint64_t churn(uint64_t nanoseconds) {
    uint64_t start = now(), pairs = 0;
    while (now() - start < nanoseconds)
        for (int i = 0; i < 64; i++, pairs++) take(0), give_back(0);
    return pairs;
}

// Host memory, for tools that watch that.
EXPORT uint64_t malloc_pairs(uint64_t calls) {
    uint64_t start = now();
    for (uint64_t i = 0; i < calls; i++) {
        void *volatile piece = malloc(BLOCK);
        free(piece);
    }
    return now() - start;
}
