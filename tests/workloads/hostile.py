"""A process whose names are no text, and which maps its own interpreter as data; it allocates on."""

import ctypes
import json
import mmap
import os
import tempfile
import time

import torch

libc = ctypes.CDLL(None)
libc.prctl(15, b"\xff\xfe) R (x", 0, 0, 0)  # PR_SET_NAME

folder = tempfile.mkdtemp().encode()
name = os.path.join(folder, b"\xff\xfe not text\n.bin")
with open(name, "wb") as file:
    file.write(b"x" * 4096)
with open(name, "rb") as file:
    odd = mmap.mmap(file.fileno(), 4096, prot=mmap.PROT_READ)
os.unlink(name)
os.rmdir(folder)

interpreter = next(
    (line.split()[-1] for line in open("/proc/self/maps", errors="replace") if "libpython3." in line),
    os.path.realpath("/proc/self/exe"),
)
with open(interpreter, "rb") as file:
    data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

print(json.dumps({"ready": True}), flush=True)
kept = []
for _ in range(1500):
    kept.append(torch.empty(1000, device="cuda"))
    time.sleep(0.02)
