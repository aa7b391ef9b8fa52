"""Allocates ten times through the driver. usage: allocations.py LIBCUDA. Works on every Python from 2.7 on."""

import ctypes
import sys


def step(driver):
    address = ctypes.c_uint64()
    error = driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1000))
    assert error == 0, error


def main():
    driver = ctypes.CDLL(sys.argv[1])
    context = ctypes.c_void_p()
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    for answer in ('{"ready": true}', '{"done": true}'):
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()
        sys.stdin.readline()
        if "ready" in answer:
            for _ in range(10):
                step(driver)


main()
