/* The simulated runtime's streams, events and graphs. Everything is done at once, so a captured graph
 * holds nothing but its name; what torch's allocator does about it is real. */
#define _GNU_SOURCE
#include "runtime.h"

#include <stdlib.h>

/* --- streams --- */

struct stream {
    uint64_t capture; /* number of the capture under way, 0: none */
};

static struct stream *known(void *stream) {
    return (uintptr_t)stream > 2 ? stream : NULL; /* the default streams cannot be captured */
}

EXPORT cudaError_t cudaStreamCreate(void **stream) {
    *stream = calloc(1, sizeof(struct stream));
    return ready();
}
EXPORT cudaError_t cudaStreamCreateWithFlags(void **stream, unsigned flags) {
    (void)flags;
    return cudaStreamCreate(stream);
}
EXPORT cudaError_t cudaStreamCreateWithPriority(void **stream, unsigned flags, int priority) {
    (void)flags, (void)priority;
    return cudaStreamCreate(stream);
}
EXPORT cudaError_t cudaStreamDestroy(void *stream) { free(known(stream)); return 0; }
EXPORT cudaError_t cudaStreamSynchronize(void *stream) { (void)stream; return 0; }
EXPORT cudaError_t cudaStreamQuery(void *stream) { (void)stream; return 0; }
EXPORT cudaError_t cudaStreamWaitEvent(void) { return 0; }
EXPORT cudaError_t cudaStreamGetPriority(void *stream, int *priority) {
    (void)stream;
    *priority = 0;
    return 0;
}

/* --- captures --- */

enum { CAPTURE_NONE, CAPTURE_ACTIVE };
enum { CAPTURE_ILLEGAL = 401 };

static _Atomic uint64_t captures;

EXPORT cudaError_t cudaStreamBeginCapture(void *stream, int mode) {
    (void)mode;
    struct stream *s = known(stream);
    if (!s || s->capture) return fail(CAPTURE_ILLEGAL);
    s->capture = ++captures;
    return 0;
}
EXPORT cudaError_t cudaStreamEndCapture(void *stream, void **graph) {
    struct stream *s = known(stream);
    if (!s || !s->capture) return fail(CAPTURE_ILLEGAL);
    s->capture = 0;
    *graph = calloc(1, 1);
    return 0;
}
EXPORT cudaError_t cudaStreamIsCapturing(void *stream, int *status) {
    const struct stream *s = known(stream);
    *status = s && s->capture ? CAPTURE_ACTIVE : CAPTURE_NONE;
    return 0;
}

static cudaError_t capture_info(void *stream, int *status, uint64_t *number) {
    const struct stream *s = known(stream);
    if (number) *number = s ? s->capture : 0;
    return cudaStreamIsCapturing(stream, status);
}
#if CUDA_MAJOR == 12
EXPORT cudaError_t cudaStreamGetCaptureInfo(void *stream, int *status, uint64_t *number) {
    return capture_info(stream, status, number);
}
EXPORT cudaError_t cudaStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *number,
                                               void **graph, void **dependencies, size_t *count) {
    if (graph) *graph = NULL;
    if (dependencies) *dependencies = NULL;
    if (count) *count = 0;
    return capture_info(stream, status, number);
}
#else
EXPORT cudaError_t cudaStreamGetCaptureInfo(void *stream, int *status, uint64_t *number,
                                            void **graph, void **dependencies, void **edges,
                                            size_t *count) {
    if (graph) *graph = NULL;
    if (dependencies) *dependencies = NULL;
    if (edges) *edges = NULL;
    if (count) *count = 0;
    return capture_info(stream, status, number);
}
#endif
EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(int *mode) { *mode = 0; return 0; }

/* --- graphs --- */

EXPORT cudaError_t cudaGraphGetNodes(void *graph, void **nodes, size_t *count) {
    (void)graph, (void)nodes;
    *count = 0;
    return 0;
}
EXPORT cudaError_t cudaGraphInstantiate(void **instance, void *graph, uint64_t flags) {
    (void)graph, (void)flags;
    *instance = calloc(1, 1);
    return 0;
}
EXPORT cudaError_t cudaGraphInstantiateWithFlags(void **instance, void *graph, uint64_t flags) {
    return cudaGraphInstantiate(instance, graph, flags);
}
EXPORT cudaError_t cudaGraphLaunch(void *instance, void *stream) {
    (void)instance, (void)stream;
    return 0;
}
EXPORT cudaError_t cudaGraphExecDestroy(void *instance) { free(instance); return 0; }
EXPORT cudaError_t cudaGraphDestroy(void *graph) { free(graph); return 0; }

/* --- events --- */

EXPORT cudaError_t cudaEventCreate(void **event) { *event = malloc(1); return 0; }
EXPORT cudaError_t cudaEventCreateWithFlags(void **event, unsigned flags) {
    (void)flags;
    return cudaEventCreate(event);
}
EXPORT cudaError_t cudaEventDestroy(void *event) { free(event); return 0; }
EXPORT cudaError_t cudaEventRecord(void *event, void *stream) { (void)event, (void)stream; return 0; }
EXPORT cudaError_t cudaEventRecordWithFlags(void) { return 0; }
EXPORT cudaError_t cudaEventQuery(void *event) { (void)event; return 0; }
EXPORT cudaError_t cudaEventSynchronize(void *event) { (void)event; return 0; }
EXPORT cudaError_t cudaEventElapsedTime(float *ms, void *start, void *end) {
    (void)start, (void)end;
    *ms = 0;
    return 0;
}
