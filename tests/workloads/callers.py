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
    for call, function, bytes in [
        (library.call, driver.cuMemAlloc_v2, 1 << 20),
        (library.call_hidden, driver.cuMemAlloc_v2, 1 << 20),
        (library._ZN7library5otherEPv, runtime.cudaMalloc, 4 << 20),
        # The simulator's calls another function of the runtime.
        (library.call, runtime.cudaMallocHost, 7 << 20),
        (library._ZN7library5otherEPv, runtime.cudaMalloc, 1 << 60),
    ]:
        pointer = ctypes.c_void_p()
        results.append(call(function, ctypes.byref(pointer), ctypes.c_ulong(bytes)))
    print(json.dumps({"results": results, "tensor": tensor.numel()}), flush=True)
    sys.stdin.readline()
    _ctypes.dlclose(library._handle)
    print(json.dumps({"unloaded": True}), flush=True)
    sys.stdin.readline()


main()
