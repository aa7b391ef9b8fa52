"""Random allocations and frees by real PyTorch, with quiet points at which all threads stand still.

At a quiet point it prints one JSON line with the time (CLOCK_MONOTONIC, ns), and per device what
PyTorch's allocator says and what the simulated driver says: bytes, `requested` before rounding,
`releasable` in segments without a live block, `split` beside live blocks in their segments. With --wait it then waits for a line on
standard input, so that a tracer can be asked at the same moment.
"""

import argparse
import ctypes
import json
import random
import sys
import threading
import time


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--allocs", type=int, default=200_000, help="allocations in all")
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--quiet-points", type=int, default=10)
    parser.add_argument("--max-live", type=int, default=400, help="live blocks per thread")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--wait", action="store_true")
    parser.add_argument("--snapshot", action="store_true", help="tell `releasable`: not in every backend")
    parser.add_argument("--keep", type=int, default=0, help="allocations before the first quiet point 0")
    return parser.parse_args()


def main():
    args = arguments()
    # Before the import, so that a tracer can attach to a process without torch.
    print(json.dumps({"ready": True}), flush=True)
    if args.wait:
        sys.stdin.readline()
    import torch

    torch.cuda.init()
    # At the first call with keywords PyTorch looks for NumPy; 2.3.1 waits for itself for ever where two
    # threads are the first.
    torch.empty(1, dtype=torch.uint8, device="cpu")
    path = next(line.split()[-1] for line in open("/proc/self/maps") if "libcuda.so.1" in line)
    driver = ctypes.CDLL(path)
    driver.cudasim_allocated_bytes.restype = ctypes.c_uint64

    def device(i):
        stats = torch.cuda.memory_stats(i)
        return {
            "allocated": torch.cuda.memory_allocated(i),
            "reserved": torch.cuda.memory_reserved(i),
            "requested": stats.get("requested_bytes.all.current"),
            "split": stats.get("inactive_split_bytes.all.current"),
            "releasable": releasable(i) if args.snapshot else None,
            "driver": driver.cudasim_allocated_bytes(i),
        }

    def releasable(i):
        segments = (s for s in torch.cuda.memory_snapshot() if s["device"] == i)
        return sum(s["total_size"] for s in segments
                   if all(block["state"] == "inactive" for block in s["blocks"]))

    def quiet(number):
        devices = [device(i) for i in range(args.devices)]
        print(json.dumps({"quiet": number, "time_ns": time.monotonic_ns(), "devices": devices}), flush=True)
        if args.wait:
            sys.stdin.readline()

    kept = [torch.empty(1 + 4096 * i, dtype=torch.uint8, device=f"cuda:{i % args.devices}")
            for i in range(args.keep)]
    if kept:
        quiet(0)

    barrier = threading.Barrier(args.threads + 1)
    per_round = args.allocs // (args.quiet_points * args.threads)
    failures = []

    def size(chooser):
        # Mostly small, some large: 1 B to 1 GiB, evenly over the powers of two.
        return min(1 << 30, int(2 ** (30 * chooser.random() ** 2.5)))

    def worker(number):
        chooser = random.Random(args.seed * 1000 + number)
        live = []
        for round_number in range(args.quiet_points):
            for _ in range(per_round):
                if len(live) >= args.max_live or (live and chooser.random() < 0.45):
                    live[chooser.randrange(len(live))] = live[-1]
                    live.pop()
                device = chooser.randrange(args.devices)
                try:
                    live.append(torch.empty(size(chooser), dtype=torch.uint8, device=f"cuda:{device}"))
                except torch.cuda.OutOfMemoryError:
                    failures.append(number)
                    live.clear()
                if chooser.random() < 0.0005:
                    torch.cuda.empty_cache()
            barrier.wait()
            barrier.wait()
        live.clear()

    threads = [threading.Thread(target=worker, args=(n,)) for n in range(args.threads)]
    for thread in threads:
        thread.start()
    for round_number in range(args.quiet_points):
        barrier.wait()
        if round_number % 3 == 1:
            torch.cuda.empty_cache()
        if round_number == args.quiet_points // 2:
            # Blocks from before attach go in the middle of the run.
            kept.clear()
        quiet(round_number + 1)
        barrier.wait()
    for thread in threads:
        thread.join()
    kept.clear()
    torch.cuda.empty_cache()
    quiet(args.quiet_points + 1)
    print(json.dumps({"done": True, "out_of_memory": len(failures)}), flush=True)


main()
