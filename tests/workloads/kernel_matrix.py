"""Allocates through the driver from keep(), then says what the simulator counts.

usage: kernel_matrix.py LIBCUDA GO: prints {"ready": true}, waits for the file GO to appear, allocates,
prints the simulator's own count and where keep() allocates, and waits.
usage: kernel_matrix.py --files: prints the paths of all files that this script needs to run.
"""

import ctypes
import json
import os
import sys
import time


def files():
    found = {os.path.realpath("/proc/self/exe"), os.__file__, ctypes.__file__}
    found.update(getattr(module, "__file__", None) or "" for module in list(sys.modules.values()))
    found -= {"", os.path.abspath(__file__), __file__}
    print("\n".join([os.path.realpath(sys.executable), *sorted(found)]))


def use_device(driver):
    context = ctypes.c_void_p()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0


def keep(driver, size):
    out = ctypes.c_uint64()
    # One statement on one line, so that both see the same one.
    line, error = sys._getframe().f_lineno, driver.cuMemAlloc_v2(ctypes.byref(out), ctypes.c_size_t(size))
    return line, error, out.value


def main(library, go):
    driver = ctypes.CDLL(library)
    use_device(driver)
    print(json.dumps({"ready": True}), flush=True)
    while not os.path.exists(go):
        time.sleep(0.05)

    lines, blocks, failed = set(), [], 0
    for number in range(1, 201):
        line, error, address = keep(driver, 4096 * number + number)
        assert error == 0, error
        lines.add(line)
        blocks.append(address)
    for _ in range(3):
        _, error, _ = keep(driver, 1 << 50)
        assert error == 2, error
        failed += 1
    for address in blocks[::3]:
        assert driver.cuMemFree_v2(ctypes.c_uint64(address)) == 0
    # Addresses are used again.
    for number in range(1, 21):
        line, error, address = keep(driver, 4096 * (3 * number - 2) + 3 * number - 2)
        assert error == 0, error

    driver.cudasim_allocated_bytes.restype = ctypes.c_uint64
    driver.cudasim_failed_calls.restype = ctypes.c_uint64
    (line,) = lines
    print(
        json.dumps(
            {
                "done": True,
                "live_bytes": driver.cudasim_allocated_bytes(0),
                "live_blocks": len(blocks) - len(blocks[::3]) + 20,
                "failed": driver.cudasim_failed_calls(),
                "line": line,
            }
        ),
        flush=True,
    )
    time.sleep(3600)


if sys.argv[1] == "--files":
    files()
else:
    main(*sys.argv[1:])
