"""Answers with JSON what PyTorch says after each piece of code that comes as a line of JSON."""

import contextlib
import io
import json
import sys

print(json.dumps({"ready": True}), flush=True)
namespace = {}
for line in sys.stdin:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(json.loads(line), "<step>", "exec"), namespace)
    torch = sys.modules.get("torch")
    print(json.dumps({
        "printed": printed.getvalue().strip(),
        "allocated": torch.cuda.memory_allocated() if torch else 0,
        "reserved": torch.cuda.memory_reserved() if torch else 0,
    }), flush=True)
