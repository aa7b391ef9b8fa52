/* The simulated driver's start, devices and contexts. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STACK_DEPTH = 256, DRIVER_VERSION = 13020 };

static struct context primaries[MAX_DEVICES];
/* Contexts from cuCtxCreate. Destroyed ones stay in the list until they are made anew. */
static struct context *created;

/* The thread's contexts; the last one is current. */
static _Thread_local struct context *stack[STACK_DEPTH];
static _Thread_local int depth;

static struct context *top(void) { return depth ? stack[depth - 1] : NULL; }

static int is_device(int device) { return device >= 0 && device < device_count; }

struct context *current_context(CUresult *why) {
    struct context *context = top();
    *why = CUDA_SUCCESS;
    if (!context) *why = CUDA_ERROR_INVALID_CONTEXT;
    else if (!context->alive) *why = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return *why ? NULL : context;
}

/* Whether a context that was handed in exists. */
static int is_alive(const struct context *wanted) {
    for (int device = 0; device < device_count; device++)
        if (&primaries[device] == wanted) return wanted->alive;
    for (const struct context *context = created; context; context = context->next)
        if (context == wanted) return context->alive;
    return 0;
}

/* --- start --- */

EXPORT CUresult cuInit(unsigned flags) {
    configure();
    if (misconfigured()) return CUDA_ERROR_UNKNOWN;
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    return device_count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}
EXPORT CUresult cuDriverGetVersion(int *version) {
    *version = DRIVER_VERSION;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : "simulated driver error";
    return CUDA_SUCCESS;
}
EXPORT CUresult cuGetErrorName(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_SIMULATED";
    return CUDA_SUCCESS;
}
EXPORT CUresult cuLogsRegisterCallback(void *callback, void *data, void **handle) {
    (void)callback, (void)data;
    if (handle) *handle = NULL;
    return CUDA_SUCCESS;
}

/* --- devices --- */

EXPORT CUresult cuDeviceGetCount(int *count) {
    configure();
    *count = device_count;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    configure();
    if (!is_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    snprintf(name, (size_t)length, "CUDA simulator %d", device);
    return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetUuid_v2(unsigned char *uuid, CUdevice device) {
    memset(uuid, 0, 16);
    uuid[15] = (unsigned char)(device + 1);
    return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetUuid(unsigned char *uuid, CUdevice device) {
    return cuDeviceGetUuid_v2(uuid, device);
}
EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    configure();
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = devices[device].capacity;
    return CUDA_SUCCESS;
}
EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    (void)device;
    switch (attribute) {
    case 75: *value = 8; break;   /* compute capability, major */
    case 76: *value = 0; break;   /* minor */
    case 16: *value = 108; break; /* multiprocessors */
    case 10: *value = 32; break;  /* warp size */
    case 1: *value = 1024; break; /* threads per block */
    case 102: *value = 1; break;  /* virtual memory management */
    case 115: *value = 1; break;  /* memory pools */
    case 119: *value = 0; break;  /* pool handle types */
    default: *value = 0;
    }
    return CUDA_SUCCESS;
}

/* --- the thread's stack of contexts --- */

static CUresult push(struct context *context) {
    if (depth == STACK_DEPTH) return CUDA_ERROR_INVALID_VALUE;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

static CUresult push_current(const char *call, CUcontext context) {
    lock_driver();
    CUresult result = scripted(call, 0);
    if (!result && !is_alive(context)) result = CUDA_ERROR_INVALID_CONTEXT;
    if (!result) result = push(context);
    unlock_driver();
    return result;
}

static CUresult pop_current(const char *call, CUcontext *context) {
    lock_driver();
    CUresult result = scripted(call, 0);
    unlock_driver();
    if (!result && !depth) result = CUDA_ERROR_INVALID_CONTEXT;
    if (result) return result;
    if (context) *context = top();
    depth--;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPushCurrent(CUcontext context) { return push_current(__func__, context); }
EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) { return push_current(__func__, context); }
EXPORT CUresult cuCtxPopCurrent(CUcontext *context) { return pop_current(__func__, context); }
EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context) { return pop_current(__func__, context); }

/* Replaces the top; no context takes the top away. */
EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    lock_driver();
    CUresult result = scripted(__func__, 0);
    if (!result && context && !is_alive(context)) result = CUDA_ERROR_INVALID_CONTEXT;
    if (!result) {
        if (depth) depth--;
        if (context) result = push(context);
    }
    unlock_driver();
    return result;
}
EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
    *context = top();
    return CUDA_SUCCESS;
}
EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
    CUresult result;
    lock_driver();
    const struct context *context = current_context(&result);
    if (context) *device = context->device;
    unlock_driver();
    return result;
}
EXPORT CUresult cuCtxSynchronize(void) { return CUDA_SUCCESS; }

/* --- contexts of their own --- */

/* One that was destroyed, or a new one. */
static struct context *spare_context(void) {
    struct context *context = created;
    while (context && context->alive) context = context->next;
    if (context) return context;
    context = calloc(1, sizeof *context);
    context->next = created;
    created = context;
    return context;
}

static CUresult create(const char *call, CUcontext *out, CUdevice device) {
    lock_driver();
    CUresult result = scripted(call, 0);
    if (!result && !out) result = CUDA_ERROR_INVALID_VALUE;
    if (!result && !is_device(device)) result = CUDA_ERROR_INVALID_DEVICE;
    if (!result && depth == STACK_DEPTH) result = CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        struct context *context = spare_context();
        context->device = device;
        context->memory = NULL;
        context->alive = 1;
        *out = context;
        push(context);
    }
    unlock_driver();
    return result;
}

/* Takes the context off this thread's stack if it is current. It stays on other threads' stacks. */
static CUresult destroy(const char *call, CUcontext context) {
    lock_driver();
    CUresult result = scripted(call, 0);
    if (!result && (!is_alive(context) || context->primary || context->memory)) result = CUDA_ERROR_INVALID_CONTEXT;
    if (!result) {
        drop_blocks_of(context);
        context->alive = 0;
        if (top() == context) depth--;
    }
    unlock_driver();
    return result;
}

EXPORT CUresult cuCtxCreate(CUcontext *out, unsigned flags, CUdevice device) {
    (void)flags;
    return create(__func__, out, device);
}
EXPORT CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device) {
    (void)flags;
    return create(__func__, out, device);
}
EXPORT CUresult cuCtxCreate_v3(CUcontext *out, void *affinity, int count, unsigned flags,
                               CUdevice device) {
    (void)affinity, (void)count, (void)flags;
    return create(__func__, out, device);
}
EXPORT CUresult cuCtxCreate_v4(CUcontext *out, void *parameters, unsigned flags, CUdevice device) {
    (void)parameters, (void)flags;
    return create(__func__, out, device);
}
EXPORT CUresult cuCtxDestroy(CUcontext context) { return destroy(__func__, context); }
EXPORT CUresult cuCtxDestroy_v2(CUcontext context) { return destroy(__func__, context); }

/* --- primary contexts: one per device, counted --- */

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    lock_driver();
    CUresult result = is_device(device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    if (!result) {
        if (flags) *flags = 0;
        *active = primaries[device].alive;
    }
    unlock_driver();
    return result;
}
static struct context *hold_primary(int device) {
    struct context *context = &primaries[device];
    context->device = device;
    context->primary = 1;
    context->alive = 1;
    context->references++;
    return context;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
    lock_driver();
    CUresult result = scripted(__func__, 0);
    if (!result && !is_device(device)) result = CUDA_ERROR_INVALID_DEVICE;
    if (!result) *out = hold_primary(device);
    unlock_driver();
    return result;
}

static void end_primary(struct context *context) {
    if (context->alive) drop_blocks_of(context);
    context->alive = 0;
}

static void let_primary_go(struct context *context) {
    if (--context->references == 0) end_primary(context);
}

static CUresult release_primary(const char *call, CUdevice device) {
    lock_driver();
    CUresult result = scripted(call, 0);
    if (!result && !is_device(device)) result = CUDA_ERROR_INVALID_DEVICE;
    if (!result && !primaries[device].references) result = CUDA_ERROR_INVALID_CONTEXT;
    if (!result) let_primary_go(&primaries[device]);
    unlock_driver();
    return result;
}

/* Those who retained it still have to release it. */
static CUresult reset_primary(const char *call, CUdevice device) {
    lock_driver();
    CUresult result = scripted(call, 0);
    if (!result && !is_device(device)) result = CUDA_ERROR_INVALID_DEVICE;
    if (!result) end_primary(&primaries[device]);
    unlock_driver();
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    return release_primary(__func__, device);
}
EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return release_primary(__func__, device);
}
EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device) { return reset_primary(__func__, device); }
EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    return reset_primary(__func__, device);
}

/* --- green contexts: a part of a device's processors, on top of its primary context --- */

EXPORT CUresult cuGreenCtxCreate(CUcontext *out, void *resources, CUdevice device, unsigned flags) {
    (void)resources;
    lock_driver();
    CUresult result = scripted(__func__, 0);
    if (!result && (!out || !flags)) result = CUDA_ERROR_INVALID_VALUE;
    if (!result && !is_device(device)) result = CUDA_ERROR_INVALID_DEVICE;
    if (!result) {
        struct context *context = spare_context();
        context->device = device;
        context->memory = hold_primary(device);
        context->alive = 1;
        *out = context;
    }
    unlock_driver();
    return result;
}

static int is_green(const struct context *context) { return is_alive(context) && context->memory; }

EXPORT CUresult cuCtxFromGreenCtx(CUcontext *out, CUcontext green) {
    lock_driver();
    CUresult result = scripted(__func__, 0);
    if (!result && (!out || !is_green(green))) result = CUDA_ERROR_INVALID_VALUE;
    if (!result) *out = green;
    unlock_driver();
    return result;
}
EXPORT CUresult cuGreenCtxDestroy(CUcontext green) {
    lock_driver();
    CUresult result = scripted(__func__, 0);
    if (!result && !is_green(green)) result = CUDA_ERROR_INVALID_CONTEXT;
    if (!result) {
        green->alive = 0;
        if (top() == green) depth--;
        let_primary_go(green->memory);
    }
    unlock_driver();
    return result;
}
