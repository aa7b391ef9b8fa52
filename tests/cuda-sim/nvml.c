/* The simulated libnvidia-ml.so.1: enough for torch's out-of-memory message and expandable
 * segments. */
#include "sim.h"

#include <string.h>

enum { NVML_NOT_SUPPORTED = 3 };

EXPORT int nvmlInit(void) { return 0; }
EXPORT int nvmlInit_v2(void) { return 0; }
EXPORT int nvmlShutdown(void) { return 0; }
EXPORT const char *nvmlErrorString(int error) { return error ? "simulated NVML error" : "success"; }
EXPORT int nvmlDeviceGetCount_v2(unsigned *count) {
    extern CUresult cuDeviceGetCount(int *) __attribute__((weak));
    int devices = 0;
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
EXPORT int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *processes) {
    (void)device, (void)processes;
    *count = 0;
    return 0;
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *processes) {
    return nvmlDeviceGetComputeRunningProcesses(device, count, processes);
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
