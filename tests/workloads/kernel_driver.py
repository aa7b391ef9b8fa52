"""Runs a real Jupyter kernel for tests and the demo.

Prints {"pid": ...} once the kernel is idle. Then reads one JSON request a line from standard input:
{"run": SOURCE} runs a cell and prints {"status": ..., "stdout": ..., "error": ...} when it is done;
{"start": SOURCE} runs a cell and prints {"status": "started"} at once. The kernel ends with standard
input.
"""

import json
import sys

from jupyter_client.manager import KernelManager


def say(answer):
    print(json.dumps(answer), flush=True)


def run(client, source):
    request = client.execute(source)
    answer = {"status": "ok", "stdout": "", "error": None}
    while True:
        message = client.get_iopub_msg(timeout=120)
        if message["parent_header"].get("msg_id") != request:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "stream" and content["name"] == "stdout":
            answer["stdout"] += content["text"]
        elif kind == "error":
            answer.update(status="error", error="\n".join(content["traceback"]))
        elif kind == "status" and content["execution_state"] == "idle":
            return answer


def main():
    manager = KernelManager()
    manager.start_kernel(extra_arguments=["--HistoryManager.hist_file=:memory:"])
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    try:
        say({"pid": manager.provisioner.pid})
        for line in sys.stdin:
            request = json.loads(line)
            if "run" in request:
                say(run(client, request["run"]))
            else:
                client.execute(request["start"])
                say({"status": "started"})
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


main()
