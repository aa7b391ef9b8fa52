/* What the sources of the simulated runtime share. */
#ifndef CUDASIM_RUNTIME_H
#define CUDASIM_RUNTIME_H

#include "sim.h"

typedef int cudaError_t;

/* The CUDA that torch was built for: structures and signatures differ between 12 and 13. */
#ifndef CUDA_MAJOR
#define CUDA_MAJOR 13
#endif
enum { RUNTIME_VERSION = CUDA_MAJOR == 12 ? 12010 : 13020 };

/* The device of this thread. */
extern _Thread_local int device_now;

/* Keeps an error for cudaGetLastError, and hands it through. */
cudaError_t fail(cudaError_t error);
/* Makes the primary context of this thread's device current, as every runtime call does. */
cudaError_t ready(void);

#endif
