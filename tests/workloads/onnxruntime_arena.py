"""Allocations by ONNX Runtime's arena for the host, with quiet points.

At a quiet point it prints one JSON line: the addresses and bytes of the outputs that are kept, which lie in
the arena. With --warm the session has run before the first line.
"""

import json
import sys

import numpy as np


def field(number, value):
    """A field of a protocol buffer: text, bytes, or a number."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out + bytes([value]))


def node(kind, inputs, output):
    return b"".join(field(1, name) for name in inputs) + field(2, output) + field(4, kind)


def tensor(name):
    """Floats in one dimension of any length."""
    shape = field(1, field(2, "n"))
    return field(1, name) + field(2, field(1, field(1, 1) + field(2, shape)))


def model():
    """out = (x + x) * (x + x) + x, in the format of ONNX."""
    nodes = [node("Add", ["x", "x"], "sum"), node("Mul", ["sum", "sum"], "square"), node("Add", ["square", "x"], "out")]
    graph = b"".join(field(1, one) for one in nodes)
    graph += field(2, "test") + field(11, tensor("x")) + field(12, tensor("out"))
    return field(1, 8) + field(7, graph) + field(8, field(2, 17))


def run(session, length):
    binding = session.io_binding()
    binding.bind_cpu_input("x", np.ones(length, np.float32))
    binding.bind_output("out")
    session.run_with_iobinding(binding)  # the user's line
    return binding.get_outputs()[0]


def quiet(name, kept, **more):
    blocks = [[value.data_ptr(), 4 * value.shape()[0]] for value in kept]
    print(json.dumps({"quiet": name, "blocks": blocks} | more), flush=True)
    sys.stdin.readline()


def refused(ort):
    """An arena that may have 1 MiB is asked for more, and throws."""
    config = ort.OrtArenaCfg({"max_mem": 1 << 20})
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(memory, config)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.use_env_allocators", "1")
    session = ort.InferenceSession(model(), options, providers=["CPUExecutionProvider"])
    run(session, 1000)
    try:
        run(session, 10_000_000)
    except Exception as error:
        return str(error)
    raise SystemExit("the limit of the arena was not kept")


def main():
    warm = "--warm" in sys.argv
    if not warm:
        print(json.dumps({"ready": True}), flush=True)
        sys.stdin.readline()
    import onnxruntime as ort

    ort.set_default_logger_severity(4)
    session = ort.InferenceSession(model(), providers=["CPUExecutionProvider"])
    kept = [run(session, 5000)]
    if warm:
        print(json.dumps({"ready": True}), flush=True)
        sys.stdin.readline()
    quiet("started", kept)
    kept += [run(session, 100_000 + n) for n in range(20)]
    quiet("kept", kept)
    del kept[1::2]
    quiet("half", kept)
    for _ in range(200):
        run(session, 20_000)
    quiet("ran", kept)
    quiet("refused", kept, error=refused(ort))
    del kept, session
    quiet("nothing", [])
    print(json.dumps({"done": True}), flush=True)


main()
