"""Children, one after another, that allocate through the driver and end.

    python processes.py LIBCUDA --children N [--by HOW] [--pids N] [--report N] [--wait]

A child is made by HOW: clone3, whose children get one of a few pids, so that pids are used again and
again (needs root); clone3-exec, whose children then become Python anew; subprocess; or a start method of
multiprocessing. Children end by themselves, by a signal, in the middle of a call, or holding what they
have not freed. Prints a JSON line after every --report children: how many there were, with how many
pids, and what they were given and held at their end. With --wait it waits for a line on standard input
before it starts and after every report."""

import argparse
import ctypes
import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

CLONE3 = 435
BLOCK = 1 << 20


def allocate(cuda, size):
    address = ctypes.c_uint64()
    if cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size)):
        os._exit(3)
    return address


def child(cuda, number):
    context = ctypes.c_void_p()
    if cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0):
        os._exit(3)
    cuda.cuCtxSetCurrent(context)
    kept = allocate(cuda, kept_bytes(number))
    freed = allocate(cuda, BLOCK)
    cuda.cuMemFree_v2(freed)
    if number % 3 == 0:
        cuda.cuMemFree_v2(kept)
    elif number % 3 == 1:
        if number % 30 == 1:
            # Killed in the middle of a call, as likely as not.
            threading.Thread(target=fail_for_ever, args=(cuda,), daemon=True).start()
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(0)


def kept_bytes(number):
    return 4096 * (1 + number % 7)


def fail_for_ever(cuda):
    address = ctypes.c_uint64()
    while cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(0)):
        pass


def load_and_be_child(driver, number):
    child(ctypes.CDLL(driver), number)


class CloneArguments(ctypes.Structure):
    """`struct clone_args` of linux/sched.h."""

    NAMES = "flags pidfd child_tid parent_tid exit_signal stack stack_size tls set_tid set_tid_size cgroup"
    _fields_ = [(name, ctypes.c_uint64) for name in NAMES.split()]


class Cloner:
    """Forks under pids of its own choice."""

    def __init__(self, count):
        # The highest ones: the kernel hands pids out upwards, and comes there last.
        with open("/proc/sys/kernel/pid_max") as limit:
            self.highest = int(limit.read()) - 1
        self.count = count
        # With the lock of the interpreter held, or the child could not go on.
        self.libc = ctypes.PyDLL(None, use_errno=True)

    def fork(self, number):
        """As os.fork(). A pid that someone else has got is passed over."""
        for attempt in range(100):
            pid = ctypes.c_int(self.highest - number % self.count - attempt * self.count)
            wanted = CloneArguments(
                exit_signal=signal.SIGCHLD, set_tid=ctypes.addressof(pid), set_tid_size=1
            )
            result = self.libc.syscall(CLONE3, ctypes.byref(wanted), ctypes.sizeof(wanted))
            if result >= 0:
                return result
            if ctypes.get_errno() != errno.EEXIST:
                raise OSError(ctypes.get_errno(), "clone3")
        raise OSError(errno.EEXIST, "clone3")


def run_child(arguments, cuda, cloner, number):
    """Makes a child and waits for it: its pid, and its exit code as of subprocess."""
    anew = [sys.executable, *sys.argv[:2], "--one", str(number)]
    if cloner:
        pid = cloner.fork(number)
        if pid == 0:
            if arguments.by == "clone3-exec":
                os.execv(anew[0], anew)
            child(cuda, number)
        return pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if arguments.by == "subprocess":
        process = subprocess.Popen(anew)
        return process.pid, process.wait()
    process = multiprocessing.get_context(arguments.by).Process(
        target=load_and_be_child, args=(arguments.driver, number)
    )
    process.start()
    process.join()
    return process.pid, process.exitcode


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("driver")
    parser.add_argument("--children", type=int, default=10_000)
    parser.add_argument("--by", default="clone3")
    parser.add_argument("--pids", type=int, default=8)
    parser.add_argument("--report", type=int, default=1_000)
    parser.add_argument("--one", type=int)
    parser.add_argument("--wait", action="store_true")
    arguments = parser.parse_args()
    cuda = ctypes.CDLL(arguments.driver)
    if arguments.one is not None:
        # The tracer needs a moment to find a new program's interpreter.
        time.sleep(1)
        child(cuda, arguments.one)

    def say(**line):
        print(json.dumps(line), flush=True)
        if arguments.wait:
            sys.stdin.readline()

    say(ready=True)
    cloner = Cloner(arguments.pids) if arguments.by.startswith("clone3") else None
    used = set()
    given = held = 0
    for number in range(arguments.children):
        pid, code = run_child(arguments, cuda, cloner, number)
        if code != (-signal.SIGKILL if number % 3 == 1 else 0):
            sys.exit(f"child {number} ended with {code}")
        used.add(pid)
        kept = kept_bytes(number)
        given += kept + BLOCK
        held += kept if number % 3 else 0
        if (number + 1) % arguments.report == 0:
            say(children=number + 1, pids=len(used), given=given, held=held)
    say(done=True)


if __name__ == "__main__":
    main()
