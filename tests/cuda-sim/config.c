/* The simulated driver's configuration: README.md. What cannot be understood is named on standard
 * error and makes cuInit fail, so that no test runs on a device it did not ask for. */
#define _GNU_SOURCE
#include "driver.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A scripted failure. */
struct failure {
    const char *call;
    uint64_t number;    /* fail this call, counted from 1; 0: any */
    uint64_t more_than; /* fail requests above this size */
    CUresult code;
    uint64_t seen;
};

static const char *const SCRIPTABLE[] = {
    "cuMemAlloc", "cuMemAlloc_v2", "cuMemAllocManaged", "cuMemAllocPitch",
    "cuMemAllocPitch_v2", "cuMemAllocAsync",
    "cuMemAllocAsync_ptsz", "cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz",
    "cuArrayCreate", "cuArrayCreate_v2", "cuArray3DCreate", "cuArray3DCreate_v2",
    "cuMipmappedArrayCreate", "cuMipmappedArrayDestroy", "cuMemFree", "cuMemFree_v2", "cuMemFreeAsync",
    "cuMemFreeAsync_ptsz", "cuArrayDestroy", "cuMemAllocHost", "cuMemAllocHost_v2",
    "cuMemHostAlloc", "cuMemHostRegister", "cuMemHostRegister_v2", "cuMemFreeHost",
    "cuMemHostUnregister", "cuMemCreate", "cuMemRelease", "cuMemRetainAllocationHandle", "cuMemMap",
    "cuMemUnmap", "cuMemAddressReserve", "cuMemAddressFree", "cuIpcOpenMemHandle",
    "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle", "cuMemImportFromShareableHandle",
    "cuImportExternalMemory", "cuDestroyExternalMemory", "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxReset",
    "cuDevicePrimaryCtxReset_v2", "cuCtxCreate", "cuCtxCreate_v2", "cuCtxCreate_v3",
    "cuCtxCreate_v4", "cuCtxDestroy", "cuCtxDestroy_v2", "cuCtxSetCurrent", "cuCtxPushCurrent",
    "cuCtxPushCurrent_v2", "cuCtxPopCurrent", "cuCtxPopCurrent_v2", "cuGreenCtxCreate",
    "cuCtxFromGreenCtx", "cuGreenCtxDestroy",
};

int device_count;

static struct failure failures[64];
static int failure_count;
static int bad;

__attribute__((format(printf, 1, 2))) static void complain(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("cudasim: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    bad = 1;
}

/* Reads a number of digits only; 0 unless `*text` starts with one. Moves on behind it. */
static int read_number(const char **text, uint64_t *value) {
    if (**text < '0' || **text > '9') return 0;
    char *end;
    *value = strtoull(*text, &end, 10);
    *text = end;
    return 1;
}

/* A number of bytes with suffix K, M, G or T, of at most what a device has addresses for. */
static int read_size(const char **text, uint64_t *value) {
    static const char suffixes[] = "KMGT";
    const uint64_t most = 1ull << DEVICE_SHIFT;
    if (!read_number(text, value)) return 0;
    const char *suffix = **text ? strchr(suffixes, **text & ~0x20) : NULL;
    int shift = 0;
    if (suffix && *suffix) {
        shift = 10 * (int)(suffix - suffixes + 1);
        ++*text;
    }
    if (*value > most >> shift) return 0;
    *value <<= shift;
    return 1;
}

static void read_devices(const char *text) {
    const char *rest = text;
    uint64_t count;
    if (!read_number(&rest, &count) || *rest || count > MAX_DEVICES)
        complain("CUDASIM_DEVICES: `%s` is not a number from 0 to %d", text, MAX_DEVICES);
    else
        device_count = (int)count;
}

static void read_memory(const char *text) {
    uint64_t capacity = 0;
    const char *rest = text;
    for (int device = 0; device < MAX_DEVICES; device++) {
        if (device == 0 || *rest) {
            int fits = read_size(&rest, &capacity) && capacity;
            if (!fits || (*rest && *rest != ':') || (*rest == ':' && !rest[1])) {
                complain("CUDASIM_MEMORY: `%s` is not a list of sizes above 0 and up to 4T, "
                         "such as 8G:16G", text);
                return;
            }
            if (*rest) rest++;
        }
        devices[device].capacity = capacity;
    }
    if (*rest) complain("CUDASIM_MEMORY: `%s` names more than %d devices", text, MAX_DEVICES);
}

static const char *scriptable(const char *call) {
    for (size_t i = 0; i < sizeof SCRIPTABLE / sizeof *SCRIPTABLE; i++)
        if (!strcmp(SCRIPTABLE[i], call)) return SCRIPTABLE[i];
    return NULL;
}

/* CALL#N, CALL#N=CODE, CALL>SIZE or CALL>SIZE=CODE; writes over the mark. */
static int read_failure(char *rule, struct failure *failure) {
    *failure = (struct failure){.more_than = UINT64_MAX, .code = CUDA_ERROR_OUT_OF_MEMORY};
    char *mark = strpbrk(rule, "#>");
    if (!mark) return 0;
    const char *rest = mark + 1;
    if (*mark == '#' ? !read_number(&rest, &failure->number) || !failure->number
                     : !read_size(&rest, &failure->more_than))
        return 0;
    if (*rest == '=') {
        uint64_t code;
        rest++;
        if (!read_number(&rest, &code) || code == 0 || code > CUDA_ERROR_UNKNOWN) return 0;
        failure->code = (CUresult)code;
    }
    *mark = 0;
    failure->call = scriptable(rule);
    return failure->call && !*rest;
}

static void read_failures(const char *text) {
    const int room = sizeof failures / sizeof *failures;
    char *copy = strdup(text), *state = NULL;
    for (char *rule = strtok_r(copy, ",", &state); rule; rule = strtok_r(NULL, ",", &state)) {
        const char *original = text + (rule - copy);
        int length = (int)strlen(rule);
        if (failure_count == room)
            complain("CUDASIM_FAIL: more than %d rules", room);
        else if (read_failure(rule, &failures[failure_count]))
            failure_count++;
        else
            complain("CUDASIM_FAIL: `%.*s` is not CALL#N, CALL#N=CODE, CALL>SIZE or "
                     "CALL>SIZE=CODE of a call that can fail", length, original);
    }
    free(copy);
}

static void read_environment(void) {
    const char *count = getenv("CUDASIM_DEVICES");
    const char *memory = getenv("CUDASIM_MEMORY");
    const char *fail = getenv("CUDASIM_FAIL");
    read_devices(count ? count : "1");
    read_memory(memory ? memory : "8G");
    if (fail) read_failures(fail);
    if (bad) device_count = 0;
}

void configure(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_environment);
}

int misconfigured(void) { return bad; }

CUresult scripted(const char *call, uint64_t size) {
    for (int i = 0; i < failure_count; i++) {
        struct failure *failure = &failures[i];
        if (strcmp(failure->call, call)) continue;
        failure->seen++;
        if (failure->number == failure->seen || size > failure->more_than) return failure->code;
    }
    return CUDA_SUCCESS;
}
