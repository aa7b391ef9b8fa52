"""vLLM's allocator: called as PyTorch calls it, and by PyTorch, as vLLM sets that up; with quiet points.

Takes the path of its extension. At a quiet point it prints one JSON line with the bytes that are held.
"""

import ctypes
import importlib.machinery
import importlib.util
import json
import sys

import torch

MIB = 1 << 20

# By address: device, bytes, address, and where the extension keeps the driver's handle.
handles = {}
asleep = False


def keep(handle):
    handles[handle[2]] = handle


def take(address):
    return handles.pop(address)


def quiet(name):
    held = 0 if asleep else sum(size for _, size, *_ in handles.values())
    print(json.dumps({"quiet": name, "held": held}), flush=True)
    sys.stdin.readline()


def load(path):
    loader = importlib.machinery.ExtensionFileLoader("cumem_allocator", path)
    spec = importlib.util.spec_from_file_location("cumem_allocator", path, loader=loader)
    extension = importlib.util.module_from_spec(spec)
    loader.exec_module(extension)
    extension.init_module(keep, take)
    return extension


def main():
    global asleep
    extension = load(sys.argv[1])
    library = ctypes.PyDLL(sys.argv[1])
    library.my_malloc.restype = ctypes.c_void_p
    library.my_malloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    library.my_free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    quiet("ready")
    blocks = []
    for n in range(1, 11):
        size = 2 * MIB * n
        blocks.append((library.my_malloc(size, 0, None), size))  # the user's line
    quiet("allocated")
    for address, size in blocks[::2]:
        library.my_free(address, size, 0, None)
    quiet("half")
    # The memory goes, the addresses stay.
    for handle in handles.values():
        extension.python_unmap_and_release(*handle)
    asleep = True
    quiet("asleep")
    for handle in handles.values():
        extension.python_create_and_map(*handle)
    asleep = False
    quiet("awake")
    for address, size in blocks[1::2]:
        library.my_free(address, size, 0, None)
    quiet("freed")
    allocator = torch.cuda.memory.CUDAPluggableAllocator(sys.argv[1], "my_malloc", "my_free")
    pool = torch.cuda.MemPool(allocator.allocator())
    with torch.cuda.use_mem_pool(pool):
        tensors = [torch.empty(3 * MIB * n, dtype=torch.uint8, device="cuda") for n in range(1, 6)]
    quiet("tensors")
    del tensors, pool
    torch.cuda.empty_cache()
    quiet("gone")
    print(json.dumps({"done": True}), flush=True)


main()
