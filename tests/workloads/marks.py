"""Imported by a notebook: allocates through the driver, and knows where in the notebook that was.

take("mark") allocates 256 bytes more than the last time. Where it was comes from IPython's own list of
the cells that it has run (`history_manager.input_hist_raw`): the cell that runs now if the mark is in its
text, else the last one that has it; and the line with the mark. truth() gives
[[cell, line, text, bytes], ...].
"""

import ctypes
import os

_cuda = ctypes.CDLL(os.environ["MARKS_LIBCUDA"])
_context = ctypes.c_void_p()
assert _cuda.cuInit(0) == 0
assert _cuda.cuDevicePrimaryCtxRetain(ctypes.byref(_context), 0) == 0
assert _cuda.cuCtxSetCurrent(_context) == 0
_truth = []


def _place(mark):
    shell = get_ipython()
    inputs = shell.history_manager.input_hist_raw
    for number in range(len(inputs) - 1, 0, -1):
        for line, text in enumerate(inputs[number].split("\n"), 1):
            if mark in text:
                return [number, line, text.strip()]
    return [None, None, None]


def take(mark):
    """A mark that is a file's name stands for the line that runs it."""
    quoted = mark if mark.endswith(".py") else '("%s")' % mark
    size = 256 * (len(_truth) + 1)
    _truth.append(_place(quoted) + [size])
    # The context is one thread's.
    assert _cuda.cuCtxSetCurrent(_context) == 0
    out = ctypes.c_uint64()
    error = _cuda.cuMemAlloc_v2(ctypes.byref(out), ctypes.c_size_t(size))
    assert error == 0, error


def freed(mark):
    """Allocates and frees at once: nothing is left to be told."""
    assert _cuda.cuCtxSetCurrent(_context) == 0
    out = ctypes.c_uint64()
    assert _cuda.cuMemAlloc_v2(ctypes.byref(out), ctypes.c_size_t(len(mark))) == 0
    assert _cuda.cuMemFree_v2(out) == 0


def truth():
    return _truth


def get_ipython():
    import IPython

    return IPython.get_ipython()
