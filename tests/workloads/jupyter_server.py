"""Answers as a Jupyter server does when it is asked for its sessions.

usage: jupyter_server.py FOLDER ROOT PATH: runs in FOLDER, where its kernel's connection file is, writes
jpserver-PID.json there, and says that the kernel runs the notebook PATH in ROOT. Prints true when it is
ready; whoever does not show its token is refused.
"""

import glob
import http.server
import json
import os
import secrets
import sys

folder, root, path = sys.argv[1:]
token = secrets.token_hex(24)
[connection] = glob.glob(os.path.join(folder, "kernel-*.json"))
kernel = os.path.basename(connection)[len("kernel-"):-len(".json")]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        allowed = self.headers["Authorization"] == "token " + token
        found = self.path == "/user/ada/api/sessions"
        sessions = [
            {"path": "other.ipynb", "type": "notebook", "kernel": {"id": "0-0"}},
            {"path": path, "type": "notebook", "kernel": {"id": kernel}},
        ]
        body = json.dumps(sessions if allowed and found else {"message": "Forbidden"}).encode()
        self.send_response(200 if allowed and found else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
about = {
    "base_url": "/user/ada/",
    "hostname": "localhost",
    "password": False,
    "pid": os.getpid(),
    "port": server.server_port,
    "root_dir": root,
    "secure": False,
    "sock": "",
    "token": token,
    "url": "http://localhost:%d/user/ada/" % server.server_port,
    "version": "2.17.0",
}
with open(os.path.join(folder, "jpserver-%d.json" % os.getpid()), "w") as file:
    json.dump(about, file)
print("true", flush=True)
server.serve_forever()
