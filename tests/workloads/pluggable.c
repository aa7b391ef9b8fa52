/* An allocator for torch.cuda.memory.CUDAPluggableAllocator, by the runtime.
 *
 *     cc -shared -fPIC -O1 pluggable.c LIBRARIES/libcudart.so.N */
#include <stddef.h>
#include <sys/types.h>

int cudaMalloc(void **, size_t);
int cudaFree(void *);
int cudaSetDevice(int);

void *take(ssize_t size, int device, void *stream) {
    void *pointer = NULL;
    (void)stream;
    cudaSetDevice(device);
    cudaMalloc(&pointer, (size_t)size);
    return pointer;
}

void give(void *pointer, ssize_t size, int device, void *stream) {
    (void)size, (void)device, (void)stream;
    cudaFree(pointer);
}
