"""Allocates by PyTorch, by the runtime and by the driver: callers.py LIBRARY.

LIBRARY is caller.c, compiled. It is loaded at the first line of standard input, and unloaded at the
second.
"""

import _ctypes
import ctypes
import glob
import json
import os
import sys

import torch


def main():
    torch.cuda.init()
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    driver = ctypes.CDLL(os.path.join(folder, "libcuda.so.1"))
    runtime = ctypes.CDLL(glob.glob(os.path.join(folder, "libcudart.so.*"))[0])
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()

    tensor = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
    library = ctypes.CDLL(sys.argv[1])
    results = []
    for function, bytes in [
        (driver.cuMemAlloc_v2, 1 << 20),
        (runtime.cudaMalloc, 5 << 20),
        # The simulator's calls another function of the runtime.
        (runtime.cudaMallocHost, 7 << 20),
        (runtime.cudaMalloc, 1 << 60),
    ]:
        pointer = ctypes.c_void_p()
        results.append(library.call(function, ctypes.byref(pointer), ctypes.c_ulong(bytes)))
    print(json.dumps({"results": results, "tensor": tensor.numel()}), flush=True)
    sys.stdin.readline()
    _ctypes.dlclose(library._handle)
    print(json.dumps({"unloaded": True}), flush=True)
    sys.stdin.readline()


main()
