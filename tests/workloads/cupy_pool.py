"""Allocations by CuPy's own memory pool, with quiet points; its segments are the simulated driver's.

Takes the path of the simulated driver. CuPy's runtime is linked into it and refuses any driver but a real one,
so the pool is told here which device is current, and gets its segments by `MemoryPool(allocator)`. What is
traced, the pool, is as CuPy ships it.

At a quiet point it prints one JSON line with the pool's own count. With --warm it has blocks before the first
line.
"""

import ctypes
import json
import sys

DEVICE = 1

driver = ctypes.CDLL(sys.argv[1])


def cupy_memory():
    """The module with the pool, which takes the answers when it is imported."""
    from cupy_backends.cuda.api import runtime

    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype = ctypes.py_object
    capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    for name, answer in ("getDevice", function(lambda _: DEVICE)), ("getDeviceCount", function(lambda _: 2)):
        alive.append(answer)
        pointer = ctypes.cast(answer, ctypes.c_void_p)
        runtime.__pyx_capi__[name] = capsule(pointer, SIGNATURE, None)
    from cupy.cuda import memory

    return memory


# Capsules point to these.
SIGNATURE = b"int (int __pyx_skip_dispatch)"
alive = []


def check(result):
    assert result == 0, result


class Segment:
    """Memory of the driver's, which goes when the pool lets go of it."""

    def __init__(self, size):
        self.address = ctypes.c_uint64()
        if driver.cuMemAlloc_v2(ctypes.byref(self.address), ctypes.c_size_t(size)) != 0:
            raise MemoryError(size)

    def __del__(self):
        check(driver.cuMemFree_v2(self.address))


def ready():
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()


def quiet(name, pool, **more):
    print(json.dumps({"quiet": name, "used": pool.used_bytes(), "total": pool.total_bytes()} | more), flush=True)
    sys.stdin.readline()


def main():
    warm = "--warm" in sys.argv
    if not warm:
        ready()
    memory = cupy_memory()

    def allocate(size):
        segment = Segment(size)
        return memory.MemoryPointer(memory.UnownedMemory(segment.address.value, size, segment, DEVICE), 0)

    context = ctypes.c_void_p()
    check(driver.cuInit(0))
    check(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), DEVICE))
    check(driver.cuCtxSetCurrent(context))
    pool = memory.MemoryPool(allocate)
    kept = [pool.malloc(1_000_000 + n) for n in range(20)]
    if warm:
        ready()
    quiet("kept", pool)
    leaked = []
    for n in range(1, 31):
        leaked.append(pool.malloc(1000 * n))  # the leak
    quiet("leaked", pool, requested=sum(1000 * n for n in range(1, 31)))
    del kept[::2]
    # Pieces of the segments that were just left.
    pieces = [pool.malloc(300_000) for _ in range(5)]
    nothing = pool.malloc(0)
    pieces[0].mem.free()
    pieces[0].mem.free()
    try:
        pool.malloc(1 << 50)
        raise SystemExit("there is no memory of that size")
    except MemoryError:
        pass
    quiet("pieces", pool)
    del pieces, nothing
    quiet("freed", pool)
    pool.free_all_blocks()
    quiet("returned", pool)
    print(json.dumps({"done": True}), flush=True)


main()
