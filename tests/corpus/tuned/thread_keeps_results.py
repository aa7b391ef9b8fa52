# expect: {"leaks": true, "growing_any_of": ["torch.randn(rows, width", "x = torch.relu(layer(x))"], "may_grow": []}
import torch
from torch import nn

import rig

import queue
import threading


def work(net, requests, results):
    while requests.get():
        with torch.no_grad():
            results.append(net(rig.batch()))


def main():
    net = rig.Net().cuda()
    requests, results = queue.Queue(), []
    worker = threading.Thread(target=work, args=(net, requests, results))
    worker.start()
    rig.ready()
    for _ in range(150):
        requests.put(True)
        rig.step()
    requests.put(False)
    worker.join()
    rig.done()


main()
