"""Allocates through the driver from every kind of Python frame, and says which stack it was.

usage: stacks.py LIBCUDA [GREENLETS]. Works on CPython 3.8 and later. Prints {"ready": true}, waits for a line,
runs, prints {"stacks": [{"frames": [[name, qualified name or null, file, line], ...], "bytes": n}], ...}
(innermost frame first, as sys._getframe() sees them), and waits for another line. `untold` are the bytes
whose interpreter cannot be told from outside. GREENLETS is a folder with greenlet for every ABI; `greenlets`
says whether there were any. CUDATRACE_DRIVER is another driver, for an interpreter with a C library of its own.

Runs itself again in subinterpreters.
"""

import asyncio
import contextlib
import ctypes
import functools
import gc
import json
import os
import re
import sys
import threading
import time

if __name__ == "__main__":
    path = os.environ.get("CUDATRACE_DRIVER", sys.argv[1])
    if len(sys.argv) > 2:
        sys.path.append(os.path.join(sys.argv[2], "cp%d%d%s" % (sys.version_info[:2] + (sys.abiflags,))))
    try:
        import greenlet
    except ImportError:
        greenlet = None

    # No extension module is loaded later on.
    import unicodedata

released = ctypes.CDLL(path)  # releases the GIL during the call
held = ctypes.PyDLL(path)  # keeps it
expected = {}
untold = [0]
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


def alloc_untold(lib):
    out = ctypes.c_uint64()
    with lock:
        next_size[0] += 1
        untold[0] += next_size[0]
    error = lib.cuMemAlloc_v2(ctypes.byref(out), ctypes.c_size_t(next_size[0]))
    assert error == 0, error


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


def ends_with_allocation(lib):
    try:
        yield
    finally:
        alloc(lib)


def ends(lib):
    closed = ends_with_allocation(lib)
    next(closed)
    closed.close()
    dropped = ends_with_allocation(lib)
    next(dropped)
    del dropped
    thrown = ends_with_allocation(lib)
    next(thrown)
    with contextlib.suppress(KeyError):
        thrown.throw(KeyError)
    unfinished = ends_with_allocation(lib)
    next(unfinished)
    del unfinished


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


def greenlets(lib):
    if greenlet is None:
        return
    hub = greenlet.getcurrent()

    def switching(depth):
        if depth:
            switching(depth - 1)
        else:
            alloc(lib)
            hub.switch()
            alloc(lib)

    def work(depth):
        for _ in range(2):
            alloc(lib)
            switching(depth)

    def within():
        child = greenlet.greenlet(lambda: alloc(lib))
        child.switch()
        alloc(lib)

    first, second = greenlet.greenlet(work), greenlet.greenlet(work)
    first.switch(3)
    alloc(lib)
    second.switch(9)
    while not (first.dead and second.dead):
        first.switch()
        alloc(lib)
        second.switch()
    # Out of the middle of a callback from C, and back into it.
    sorting = greenlet.greenlet(lambda: sorted([2, 1], key=lambda n: hub.switch() or alloc(lib) or n))
    while not sorting.dead:
        sorting.switch()
        alloc(lib)
    greenlet.greenlet(within).switch()
    # An exception that is raised in another one.
    stopped = greenlet.greenlet(lambda: list(ends_with_allocation(hub.switch() or lib)))
    stopped.switch()
    stopped.throw()
    alloc(lib)


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
    ends(lib)
    greenlets(lib)
    far_jump(lib)
    from_c(lib)
    evaluated(lib)
    cells(lib)
    long_module(lib)
    unicode_naïve(lib)


own = threading.local()


def in_thread(lib):
    use_device()
    scenario(lib)
    # Freed when the thread ends.
    own.last = Finalised(lib)


class Interpreters:
    """Subinterpreters as the version has them."""

    def __init__(self):
        try:
            import _interpreters as module

            # With a GIL of their own, and with the main interpreter's.
            self.configs = [("isolated",), ("legacy",)]
        except ImportError:
            import _xxsubinterpreters as module
            # Isolated ones have no ctypes yet, or no threads.
            self.configs = [(False,)] if sys.version_info >= (3, 9) else [()]
        self.module = module
        # Before, they share objects that each collects on its own: 3.9 crashes now and then.
        self.can_end = sys.version_info >= (3, 12)

    def create(self, config):
        if config == (False,):
            return self.module.create(isolated=False)
        return self.module.create(*config)

    def run(self, interpreter, code):
        if hasattr(self.module, "exec"):
            error = self.module.exec(interpreter, code)
            assert error is None, error
        else:
            self.module.run_string(interpreter, code)


def subinterpreters(interpreters):
    if not interpreters.can_end:
        gc.disable()
    with open(__file__, encoding="utf-8") as file:
        source = file.read()
    for config in interpreters.configs:
        interpreter = interpreters.create(config)
        reader, writer = os.pipe()
        answers = []

        def read():
            with open(reader) as pipe:
                answers.append(pipe.read())

        reading = threading.Thread(target=read)
        reading.start()
        names = {"__name__": "inside", "path": path, "answer_to": writer}
        interpreters.run(interpreter, "exec(compile(%r, %r, 'exec'), %r)" % (source, __file__, names))
        # The answer ends here, before the interpreter does.
        os.close(writer)
        reading.join()
        if interpreters.can_end:
            interpreters.module.destroy(interpreter)
        answer = json.loads(answers[0])
        untold[0] += answer["untold"]
        for frames, size in answer["stacks"]:
            frames = tuple(map(tuple, frames))
            expected[frames] = expected.get(frames, 0) + size


def inside():
    """What a subinterpreter runs."""
    gc.disable()
    # Up to 3.11 nothing outside tells what a thread that has released the GIL runs.
    tells = sys.version_info >= (3, 12)

    def work():
        for lib in (held, released):
            step = alloc if lib is held or tells else alloc_untold
            step(lib)
            [step(lib) for _ in range(2)]
            sorted([2, 1], key=lambda number: step(lib) or number)
            if step is alloc:
                list(delegating(lib))
                ends(lib)

    def in_thread():
        use_device()
        work()

    work()
    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    answer = {"stacks": list(expected.items()), "untold": untold[0]}
    os.write(answer_to, json.dumps(answer).encode())


def main():
    use_device()
    interpreters = Interpreters()
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
    subinterpreters(interpreters)
    stacks = [{"frames": frames, "bytes": size} for frames, size in expected.items()]
    answer = {"stacks": stacks, "untold": untold[0], "greenlets": greenlet is not None}
    print(json.dumps(answer), flush=True)
    sys.stdin.readline()
    if not interpreters.can_end:
        os._exit(0)


main() if __name__ == "__main__" else inside()
