"""Calls the functions of tests/workloads/overhead.c, whose library is the first argument.

Prints {"ready": true}. Then reads one JSON request a line from standard input:
{"depth": D, "calls": N} reports N allocations with a Python stack of D frames, then their N frees, and
prints {"allocate": NANOSECONDS, "release": NANOSECONDS};
{"malloc": N, "depth": D} takes and gives back N pieces of host memory with such a stack, and prints
{"malloc": NANOSECONDS};
{"churn": NANOSECONDS} reports the allocation and free of one block for so long, and prints {"pairs": N}.
With a second argument, memray writes what it sees to that file.
"""

import contextlib
import ctypes
import json
import sys

library = ctypes.CDLL(sys.argv[1])
for name in ("allocate", "release", "churn", "malloc_pairs"):
    function = getattr(library, name)
    function.argtypes, function.restype = [ctypes.c_uint64], ctypes.c_uint64


def deeper(frames, function, argument):
    if frames:
        return deeper(frames - 1, function, argument)
    return function(argument)


# The frames of this module, of `serve`, of `answer` and one of `deeper` are there already.
OTHERS = 4


def answer(request):
    if "churn" in request:
        return {"pairs": library.churn(request["churn"])}
    more = request["depth"] - OTHERS
    if "malloc" in request:
        return {"malloc": deeper(more, library.malloc_pairs, request["malloc"])}
    calls = request["calls"]
    return {
        "allocate": deeper(more, library.allocate, calls),
        "release": deeper(more, library.release, calls),
    }


def serve():
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


def tracker():
    if len(sys.argv) < 3:
        return contextlib.nullcontext()
    import memray

    return memray.Tracker(sys.argv[2])


with tracker():
    serve()
