/* The few functions of the mathematical libraries whose results torch looks at; every other one is a
 * generated stub that returns 0. Linked into each of those libraries. */
#include "sim.h"

static int handle_mark;

static int give_handle(void **handle) {
    *handle = &handle_mark;
    return 0;
}

EXPORT int cublasCreate_v2(void **handle) { return give_handle(handle); }
EXPORT int cublasLtCreate(void **handle) { return give_handle(handle); }
EXPORT int cublasLtMatmulPreferenceCreate(void **handle) { return give_handle(handle); }
EXPORT int cublasGetVersion_v2(void *handle, int *version) { (void)handle; *version = CUDA_MAJOR * 10000; return 0; }
EXPORT size_t cublasLtGetVersion(void) { return CUDA_MAJOR * 10000; }
EXPORT int cublasGetPointerMode_v2(void *handle, int *mode) { (void)handle; *mode = 0; return 0; }
EXPORT int cublasGetMathMode(void *handle, int *mode) { (void)handle; *mode = 0; return 0; }
/* handle, description, A, B, C, D, preference, requested, results, count */
EXPORT int cublasLtMatmulAlgoGetHeuristic(void *handle, void *description, void *a, void *b, void *c,
                                          void *d, void *preference, int requested, void *results,
                                          int *count) {
    (void)handle, (void)description, (void)a, (void)b, (void)c, (void)d, (void)preference;
    (void)requested, (void)results;
    *count = 1;
    return 0;
}
EXPORT int cudnnCreate(void **handle) { return give_handle(handle); }
EXPORT size_t cudnnGetVersion(void) { return CUDA_MAJOR == 12 ? 8902 : 91900; }
EXPORT size_t cudnnGetCudartVersion(void) { return CUDA_MAJOR * 1000; }
EXPORT int cusolverDnCreate(void **handle) { return give_handle(handle); }
EXPORT int cusparseCreate(void **handle) { return give_handle(handle); }
EXPORT int ncclGetVersion(int *version) { *version = 22900; return 0; }
EXPORT int nvrtcVersion(int *major, int *minor) { *major = CUDA_MAJOR; *minor = 0; return 0; }
