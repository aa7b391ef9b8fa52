"""Runs a real Jupyter kernel for tests and the demo.

usage: kernel_driver.py [ARGUMENT...], arguments of the kernel; without one its history is in memory.
Prints {"pid": ...} once the kernel is idle. Then reads one JSON request a line from standard input:
{"run": SOURCE} runs a cell and prints {"status": ..., "stdout": ..., "error": ...} when it is done, with
"store_history": false one that gets no number, with "interrupt": TEXT one that is interrupted once it has
printed that; {"start": SOURCE} runs a cell and prints {"status": "started"} at once. The kernel ends with
standard input.
"""

import json
import os
import sys
import uuid

from jupyter_client.manager import KernelManager
from jupyter_core.paths import jupyter_runtime_dir


def say(answer):
    print(json.dumps(answer), flush=True)


def run(manager, client, request):
    # Else an error ends the next cells unrun, if they come at once.
    store_history = request.get("store_history", True)
    message_id = client.execute(request["run"], store_history=store_history, stop_on_error=False)
    interrupt = request.get("interrupt")
    answer = {"status": "ok", "stdout": "", "error": None}
    while True:
        message = client.get_iopub_msg(timeout=120)
        if message["parent_header"].get("msg_id") != message_id:
            continue
        kind, content = message["msg_type"], message["content"]
        if kind == "stream" and content["name"] == "stdout":
            answer["stdout"] += content["text"]
            if interrupt and interrupt in answer["stdout"]:
                interrupt = None
                manager.interrupt_kernel()
        elif kind == "error":
            answer.update(status="error", error="\n".join(content["traceback"]))
        elif kind == "status" and content["execution_state"] == "idle":
            return answer


def main():
    # As a Jupyter server names it.
    os.makedirs(jupyter_runtime_dir(), exist_ok=True)
    connection = os.path.join(jupyter_runtime_dir(), "kernel-%s.json" % uuid.uuid4())
    manager = KernelManager(connection_file=connection)
    manager.start_kernel(extra_arguments=sys.argv[1:] or ["--HistoryManager.hist_file=:memory:"])
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    try:
        say({"pid": manager.provisioner.pid})
        for line in sys.stdin:
            request = json.loads(line)
            if "run" in request:
                say(run(manager, client, request))
            else:
                client.execute(request["start"])
                say({"status": "started"})
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


main()
