/* The simulated driver, libcuda.so.1: how its entry points are looked up, and those that it does not
 * have. The others are in context.c, memory.c and vmm.c. */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>

/* What an entry point is called since a version of the API. */
static const struct {
    int version;
    const char *suffix;
} REVISIONS[] = {{12050, "_v4"}, {11040, "_v3"}, {3020, "_v2"}, {0, ""}};

enum { PER_THREAD_STREAMS = 2 };

static void *look_up(const char *symbol, const char *suffix) {
    char name[128];
    snprintf(name, sizeof name, "%s%s", symbol, suffix);
    Dl_info info;
    if (!dladdr((void *)look_up, &info)) return NULL;
    void *self = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (!self) return NULL;
    void *found = dlsym(self, name);
    dlclose(self);
    return found;
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version,
                                    uint64_t flags, int *status) {
    *function = flags & PER_THREAD_STREAMS ? look_up(symbol, "_ptsz") : NULL;
    for (size_t i = 0; !*function && i < sizeof REVISIONS / sizeof *REVISIONS; i++)
        if (version >= REVISIONS[i].version) *function = look_up(symbol, REVISIONS[i].suffix);
    if (status) *status = *function ? 0 : 1;
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* --- what torch looks up at start and this simulation does not do --- */

#define UNSUPPORTED(name) \
    EXPORT CUresult name(void) { return CUDA_ERROR_NOT_SUPPORTED; }
UNSUPPORTED(cuDevResourceGenerateDesc)
UNSUPPORTED(cuDevSmResourceSplitByCount)
UNSUPPORTED(cuDeviceGetDevResource)
UNSUPPORTED(cuGreenCtxStreamCreate)
UNSUPPORTED(cuLogsUnregisterCallback)
UNSUPPORTED(cuMemExportToShareableHandle)
UNSUPPORTED(cuMemGetAllocationPropertiesFromHandle)
UNSUPPORTED(cuMemsetD32Async)
UNSUPPORTED(cuMulticastAddDevice)
UNSUPPORTED(cuMulticastBindMem)
UNSUPPORTED(cuMulticastCreate)
UNSUPPORTED(cuMulticastUnbind)
UNSUPPORTED(cuStreamWriteValue32)
