"""Allocations by real TensorFlow in its BFC allocator for the host, with quiet points.

At a quiet point it prints one JSON line with the allocator's own statistics: bytes in use, their
highest value, allocations ever. With --warm TensorFlow has allocated before the first line.
"""

import ctypes
import json
import os
import sys

os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = ""


class Statistics(ctypes.Structure):
    """The first fields of `tsl::AllocatorStats`, with room for the others."""

    _fields_ = [("allocations", ctypes.c_int64), ("in_use", ctypes.c_int64), ("peak", ctypes.c_int64),
                ("largest", ctypes.c_int64), ("others", ctypes.c_char * 512)]


def statistics():
    library = ctypes.CDLL(framework())
    singleton = library._ZN10tensorflow12ProcessState9singletonEv
    singleton.restype = ctypes.c_void_p
    allocator_of = library._ZN10tensorflow12ProcessState15GetCPUAllocatorEi
    allocator_of.restype = ctypes.c_void_p
    allocator_of.argtypes = [ctypes.c_void_p, ctypes.c_int]
    ask = library._ZN3tsl12BFCAllocator8GetStatsEv
    ask.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    answer = Statistics()
    ask(ctypes.byref(answer), allocator_of(singleton(), 0))
    return answer


def framework():
    return next(line.split()[-1] for line in open("/proc/self/maps") if "libtensorflow_framework" in line)


def quiet(name):
    seen = statistics()
    print(json.dumps({"quiet": name, "in_use": seen.in_use, "peak": seen.peak,
                      "allocations": seen.allocations}), flush=True)
    sys.stdin.readline()


def main():
    if "--warm" not in sys.argv:
        print(json.dumps({"ready": True}), flush=True)
        sys.stdin.readline()
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(2)
    kept = [tf.random.uniform([250_000]) for _ in range(4)]
    if "--warm" in sys.argv:
        print(json.dumps({"ready": True}), flush=True)
        sys.stdin.readline()
    quiet("kept")
    variables = [tf.Variable(tf.zeros([100_000 + n])) for n in range(20)]
    quiet("variables")
    del kept

    @tf.function
    def step(x):
        for variable in variables:
            variable.assign_add(tf.fill(variable.shape, tf.reduce_sum(x)))
        return tf.reduce_sum(x) * 2.0

    for _ in range(50):
        step(tf.random.uniform([10_000]))
    quiet("trained")
    leaked = []
    for n in range(30):
        leaked.append(tf.random.uniform([50_000 + n]))  # the leak
    quiet("leaked")
    print(json.dumps({"done": True}), flush=True)


main()
