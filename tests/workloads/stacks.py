"""Allocates through the driver from every kind of Python frame, and says which stack it was.

usage: stacks.py LIBCUDA. Works on CPython 3.8 and later. Prints {"ready": true}, waits for a line,
runs, prints {"stacks": [{"frames": [[name, qualified name or null, file, line], ...], "bytes": n}]}
(innermost frame first, as sys._getframe() sees them), and waits for another line.
"""

import asyncio
import contextlib
import ctypes
import functools
import json
import re
import sys
import threading
import time

path = sys.argv[1]
released = ctypes.CDLL(path)  # releases the GIL during the call
held = ctypes.PyDLL(path)  # keeps it
expected = {}
lock = threading.Lock()
next_size = [0]


def use_device():
    context = ctypes.c_void_p()
    assert released.cuInit(0) == 0
    assert released.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert released.cuCtxSetCurrent(context) == 0


def note(frame):
    with lock:
        next_size[0] += 1
        size = next_size[0]
        frames = []
        while frame is not None:
            code = frame.f_code
            frames.append((code.co_name, getattr(code, "co_qualname", None), code.co_filename, frame.f_lineno))
            frame = frame.f_back
        expected[tuple(frames)] = expected.get(tuple(frames), 0) + size
        return size


def alloc(lib):
    out = ctypes.c_uint64()
    # One line, so that both see the same one.
    error = lib.cuMemAlloc_v2(ctypes.byref(out), ctypes.c_size_t(note(sys._getframe())))
    assert error == 0, error


def plain(lib):
    alloc(lib)


def recursion(lib, depth):
    if depth:
        recursion(lib, depth - 1)
    else:
        alloc(lib)


def generator(lib):
    for _ in range(2):
        alloc(lib)
        yield


def delegating(lib):
    yield from generator(lib)


async def inner_coroutine(lib):
    alloc(lib)
    await asyncio.sleep(0)
    alloc(lib)


async def coroutine(lib):
    await asyncio.gather(inner_coroutine(lib), inner_coroutine(lib))
    async for _ in async_generator(lib):
        pass


async def async_generator(lib):
    alloc(lib)
    yield 1
    alloc(lib)


class Dunders:
    def __init__(self, lib):
        self.lib = lib

    def __add__(self, other):
        alloc(self.lib)
        return self

    @property
    def attribute(self):
        alloc(self.lib)

    def __getattr__(self, name):
        alloc(self.lib)

    def __enter__(self):
        alloc(self.lib)

    def __exit__(self, *exc):
        alloc(self.lib)

    def __lt__(self, other):
        alloc(self.lib)
        return False

    @staticmethod
    def static(lib):
        alloc(lib)

    @classmethod
    def klass(cls, lib):
        alloc(lib)


class Finalised:
    def __init__(self, lib):
        self.lib = lib

    def __del__(self):
        alloc(self.lib)


def decorated(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


@decorated
def behind_decorator(lib):
    alloc(lib)


@contextlib.contextmanager
def manager(lib):
    alloc(lib)
    yield
    alloc(lib)


def exceptions(lib):
    try:
        raise ValueError
    except ValueError:
        alloc(lib)
    finally:
        alloc(lib)


def far_jump(lib):
    if lib is None:
        pass
















































































    alloc(lib); alloc(lib)
    return (lambda: alloc(lib))()


def from_c(lib):
    CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    numbers = (ctypes.c_int * 2)(2, 1)

    def compare(a, b):
        alloc(lib)
        return 0

    libc = ctypes.CDLL(None)
    libc.qsort(numbers, ctypes.c_size_t(2), ctypes.c_size_t(4), CALLBACK(compare))
    sorted([2, 1], key=lambda number: alloc(lib) or number)
    list(map(lambda number: alloc(lib), [1]))
    functools.reduce(lambda a, b: alloc(lib), [1, 2])
    re.sub("a", lambda match: alloc(lib) or "", "a")
    sorted([Dunders(lib), Dunders(lib)])
    [alloc(lib) for _ in range(2)]
    {alloc(lib): 1 for _ in range(1)}
    next(alloc(lib) for _ in range(1))


def evaluated(lib):
    names = {"alloc": alloc, "lib": lib}
    exec("alloc(lib)\n\nalloc(lib)", names)
    eval("alloc(lib)", names)
    exec("def made():\n\n    alloc(lib)\nmade()", names)
    class Body:
        alloc(lib)


def cells(lib):
    # Like notebook cells: compiled, run and freed again and again, often at the same address.
    for number in range(200):
        source = "\n" * (number % 7) + "for _ in range(1):\n    alloc(lib)\n"
        exec(compile(source, "<cell %d>" % number, "exec"), {"alloc": alloc, "lib": lib})


def long_module(lib):
    # Its line table is larger than one record of the tracer's.
    source = "".join("x = %d\n" % number for number in range(9000)) + "alloc(lib)\n"
    exec(compile(source, "/tmp/long.py", "exec"), {"alloc": alloc, "lib": lib})


def unicode_naïve(lib):
    exec(compile("alloc(lib)", "/tmp/größe/数据/😀.py", "exec"), {"alloc": alloc, "lib": lib})


def scenario(lib):
    plain(lib)
    recursion(lib, 40)
    list(generator(lib))
    list(delegating(lib))
    asyncio.run(coroutine(lib))
    Dunders(lib) + 1
    Dunders(lib).attribute
    Dunders(lib).missing
    with Dunders(lib):
        pass
    Dunders.static(lib)
    Dunders.klass(lib)
    Finalised(lib)
    behind_decorator(lib)
    with manager(lib):
        pass
    exceptions(lib)
    far_jump(lib)
    from_c(lib)
    evaluated(lib)
    cells(lib)
    long_module(lib)
    unicode_naïve(lib)


def in_thread(lib):
    use_device()
    scenario(lib)


def main():
    use_device()
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    stop = threading.Event()

    def busy():
        # Takes the GIL whenever it is released, so that the current thread state is another's.
        while not stop.is_set():
            sum(range(100))

    for lib in (held, released):
        scenario(lib)
        thread = threading.Thread(target=in_thread, args=(lib,))
        thread.start()
        thread.join()
    distraction = threading.Thread(target=busy)
    distraction.start()
    threads = [threading.Thread(target=in_thread, args=(released,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    distraction.join()
    stacks = [{"frames": frames, "bytes": size} for frames, size in expected.items()]
    print(json.dumps({"stacks": stacks}), flush=True)
    sys.stdin.readline()


main()
