/* The simulated libnvidia-ml.so.1: enough for torch's out-of-memory message and expandable
 * segments. */
#include "sim.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NVML_NOT_SUPPORTED = 3, NVML_INSUFFICIENT_SIZE = 7 };

static unsigned index_of(void *device) { return (unsigned)(uintptr_t)device - 1; }

EXPORT int nvmlInit(void) { return 0; }
EXPORT int nvmlInit_v2(void) { return 0; }
EXPORT int nvmlShutdown(void) { return 0; }
EXPORT const char *nvmlErrorString(int error) { return error ? "simulated NVML error" : "success"; }
EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
    extern CUresult cuDeviceGetCount(int *) __attribute__((weak));
    const char *configured = getenv("CUDASIM_DEVICES");
    int devices = configured ? atoi(configured) : 1;
    if (cuDeviceGetCount) cuDeviceGetCount(&devices);
    *count = (unsigned)devices;
    return 0;
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    *device = (void *)(uintptr_t)(index + 1);
    return 0;
}
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) {
    (void)bus;
    *device = (void *)1;
    return 0;
}
EXPORT int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    snprintf(text, length, "GPU-00000000-0000-0000-0000-%012u", index_of(device));
    return 0;
}
EXPORT int nvmlDeviceGetName(void *device, char *text, unsigned length) {
    snprintf(text, length, "CUDA simulator %u", index_of(device));
    return 0;
}
EXPORT int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *processes) {
    (void)device, (void)processes;
    *count = 0;
    return 0;
}

struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

/* Whatever the drivers of other processes have told (CUDASIM_PROCESSES). */
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count,
                                                   struct process *processes) {
    const char *name = getenv("CUDASIM_PROCESSES");
    DIR *folder = name ? opendir(name) : NULL;
    unsigned room = *count, found = 0;
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        unsigned pid = (unsigned)strtoul(entry->d_name, NULL, 10);
        if (!pid || kill((pid_t)pid, 0)) continue;
        char path[4096];
        snprintf(path, sizeof path, "%s/%u", name, pid);
        unsigned long long used[MAX_DEVICES] = {0};
        FILE *file = fopen(path, "rb");
        if (!file) continue;
        size_t read = fread(used, sizeof used[0], MAX_DEVICES, file);
        fclose(file);
        if (read != MAX_DEVICES || !used[index_of(device)]) continue;
        if (found < room)
            processes[found] = (struct process){pid, used[index_of(device)], ~0u, ~0u};
        found++;
    }
    if (folder) closedir(folder);
    *count = found;
    return found > room ? NVML_INSUFFICIENT_SIZE : 0;
}
EXPORT int nvmlDeviceGetGpuFabricInfoV(void *device, void *info) {
    (void)device, (void)info;
    return NVML_NOT_SUPPORTED;
}
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13020; return 0; }
EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned length) {
    strncpy(text, "0.0 (simulated)", length);
    return 0;
}
EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return NVML_NOT_SUPPORTED; }
EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return NVML_NOT_SUPPORTED; }
