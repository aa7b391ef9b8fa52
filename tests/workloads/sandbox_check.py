"""Checks that the sandbox is what the tests take it for: real PyTorch, simulated device.

Prints one line per check and ends with `ok`. Run it with CUDASIM_DEVICES=2 CUDASIM_MEMORY=8G:16G.
"""

import ctypes
import os
import subprocess
import sys

import torch

GIB = 1 << 30


def driver():
    path = next(line.split()[-1] for line in open("/proc/self/maps") if "libcuda.so.1" in line)
    library = ctypes.CDLL(path)
    library.cudasim_allocated_bytes.restype = ctypes.c_uint64
    library.cudasim_failed_calls.restype = ctypes.c_uint64
    return library


def check(name, condition):
    if not condition:
        sys.exit(f"FAILED: {name}")
    print("checked:", name)


def child(code, **environment):
    process = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True
    )
    if process.returncode:
        sys.exit(f"FAILED: {process.stderr}")
    return process.stdout.split()


def main():
    check("two devices", torch.cuda.is_available() and torch.cuda.device_count() == 2)
    free, total = torch.cuda.mem_get_info(1)
    check("configured memory", (free, total) == (16 * GIB, 16 * GIB))

    block = torch.empty(5 << 20, device="cuda:0")
    check("allocated is the block", torch.cuda.memory_allocated(0) == 20 << 20)
    check("reserved is the driver's count",
          torch.cuda.memory_reserved(0) == driver().cudasim_allocated_bytes(0) == 20 << 20)
    del block
    torch.cuda.empty_cache()
    check("empty_cache gives all back", driver().cudasim_allocated_bytes(0) == 0)

    try:
        torch.empty(9 * GIB, dtype=torch.uint8, device="cuda:0")
        check("out of memory is raised", False)
    except torch.cuda.OutOfMemoryError as error:
        # 2.3 writes the device's number as a character, which is NUL, and so ends there.
        whole = "8.00 GiB" in str(error) or torch.__version__.startswith("2.3.")
        check("out of memory names the sizes", "9.00 GiB" in str(error) and whole)
    check("nothing stays after out of memory", torch.cuda.memory_reserved(0) == 0)

    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    model = model.cuda()
    optimizer = torch.optim.Adam(model.parameters())
    loss = model(torch.zeros(32, 256, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()
    moments = [s for p in optimizer.state.values() for s in p.values() if torch.is_tensor(s)]
    check("backward and Adam", len(moments) == 12 and all(p.grad is not None for p in model.parameters()))

    with torch.cuda.stream(torch.cuda.Stream()):
        torch.zeros(1000, device="cuda:1")
    check("second device and stream", torch.cuda.memory_reserved(1) == 2 << 20)
    graph, captured = torch.cuda.CUDAGraph(), None
    with torch.cuda.graph(graph):
        captured = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
    graph.replay()
    check("captured graph with a pool of its own", captured.shape == (3 << 20,) and graph.pool() != (0, 0))
    check("pinned memory", torch.empty(100).pin_memory().shape == (100,))

    probe = "import torch; t = torch.empty(50 << 20, dtype=torch.uint8, device='cuda'); " \
            "print(torch.cuda.memory_allocated(), torch.cuda.memory_reserved())"
    check("expandable segments", child(
        probe, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True") == [str(50 << 20), str(60 << 20)])
    check("cudaMallocAsync", child(
        probe, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")[0] == str(50 << 20))
    scripted = "import torch\ntry:\n  torch.empty(1, device='cuda'); print('no error')\n" \
               "except torch.cuda.OutOfMemoryError: print('raised')"
    check("scripted failure", child(scripted, CUDASIM_FAIL="cuMemAlloc_v2>1M=2") == ["raised"])
    print("ok")


main()
