"""Calls the hook of tests/workloads/overhead.c, whose library is the first argument.

Prints {"ready": true}. Then reads one JSON request a line from standard input:
{"depth": D, "calls": N} reports N allocations with a Python stack of D frames, then their N frees, and
prints {"allocate": NANOSECONDS, "release": NANOSECONDS}; {"churn": NANOSECONDS} allocates and frees one
block for so long and prints {"pairs": N}.
"""

import ctypes
import json
import sys

library = ctypes.CDLL(sys.argv[1])
for name in ("allocate", "release", "churn"):
    function = getattr(library, name)
    function.argtypes, function.restype = [ctypes.c_uint64], ctypes.c_uint64


def deeper(frames, function, argument):
    if frames:
        return deeper(frames - 1, function, argument)
    return function(argument)


# This module's frame, that of `answer` and one of `deeper` are there already.
OTHERS = 3


def answer(request):
    if "churn" in request:
        return {"pairs": library.churn(request["churn"])}
    more = request["depth"] - OTHERS
    taken = {name: deeper(more, getattr(library, name), request["calls"]) for name in ("allocate", "release")}
    return taken


print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)
