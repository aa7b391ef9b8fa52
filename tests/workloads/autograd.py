"""Backward passes of every kind on two devices, and what they left allocated by who began them.

Prints one JSON line: `sites`, a list of who allocated memory that is still held, as far as a pass is
concerned: `device`, `frames` of this file (function and line, innermost first), `backward_pass` (a node
without Python of its own), `bytes` in blocks; and `allocated` bytes by device.

Everything is elementwise, on tensors of less than a MiB: then a block is what was asked for, rounded up to
512 bytes, and no library keeps a workspace. Each gradient is of a size of its own.
"""

import itertools
import json
import sys
import threading

print(json.dumps({"ready": True}), flush=True)
sys.stdin.readline()
import torch
import torch.utils.checkpoint

torch.cuda.init()
DEVICES = ["cuda:0", "cuda:1"]
sizes = itertools.count(1000, 131)
kept = []
sites = {}
lock = threading.Lock()
# At the first call with keywords PyTorch looks for NumPy; 2.3.1 waits for itself where two threads do.
torch.empty(1, dtype=torch.uint8, device="cpu")


def stack(frame):
    """The frames of this file, innermost first."""
    frames = []
    while frame:
        if frame.f_code.co_filename == __file__:
            frames.append((frame.f_code.co_qualname, frame.f_lineno))
        frame = frame.f_back
    return frames


def here():
    return stack(sys._getframe(1))


def inside(began, depth=1):
    """The innermost frames, which run inside of a pass, and on with what began it, whatever the thread was in the
    middle of when it took up the node."""
    return stack(sys._getframe(1))[:depth] + began


def keep(frames, tensors, backward_pass=True):
    """Notes who allocated these tensors, and keeps them."""
    with lock:
        for tensor in tensors:
            key = (tensor.device.index, tuple(frames), backward_pass)
            blocks = (tensor.untyped_storage().nbytes() + 511) // 512 * 512
            sites[key] = sites.get(key, 0) + blocks
            kept.append(tensor)


def leaf(device):
    return torch.ones(next(sizes), device=device, requires_grad=True)


def leaves():
    return [leaf(device) for device in DEVICES for _ in range(2)]


def loss_of(tensors):
    """A loss on the first device that needs the gradients of all."""
    return sum((t * torch.ones_like(t) * 2).sum().to(DEVICES[0]) for t in tensors)


def take_gradients(tensors):
    gradients = [t.grad for t in tensors]
    for t in tensors:
        t.grad = None
    return gradients


def plain():
    tensors = leaves()
    loss = loss_of(tensors)
    at = here(); loss.backward()
    keep(at, take_gradients(tensors))


def step(tensors):
    """Called from different lines."""
    loss = loss_of(tensors)
    at = here(); torch.autograd.backward([loss])
    keep(at, take_gradients(tensors))


def callers():
    step(leaves())
    for _ in range(3):
        step(leaves())
    (lambda: step(leaves()))()


def gradients():
    tensors = leaves()
    loss = loss_of(tensors)
    at = here(); found = torch.autograd.grad(loss, tensors)
    keep(at, found)


def retained():
    tensors = leaves()
    loss = loss_of(tensors)
    at = here(); loss.backward(retain_graph=True)
    keep(at, take_gradients(tensors))
    at = here(); loss.backward()
    keep(at, take_gradients(tensors))


def on_the_calling_thread():
    """The node that copies back to the device is the CPU's, which the waiting thread does itself."""
    tensor = leaf(DEVICES[1])
    loss = (tensor.cpu() * 2).sum()
    at = here(); loss.backward()
    keep(at, take_gradients([tensor]))


class InPython(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, began):
        ctx.began = began
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        at = inside(ctx.began); own = torch.ones(next(sizes), device=grad.device)
        keep(at, [own], backward_pass=False)
        return grad * 2, None


def functions_and_hooks():
    tensors = leaves()
    began = []
    for t in tensors:
        t.register_hook(lambda grad: hook(grad, began))
    loss = sum(InPython.apply(t * 3, began).sum().to(DEVICES[0]) for t in tensors)
    began += here(); loss.backward()
    keep(began, take_gradients(tensors))


def hook(grad, began):
    at = inside(began, 2); own = torch.ones(next(sizes), device=grad.device)
    keep(at, [own], backward_pass=False)


class Reentrant(torch.autograd.Function):
    """Begins a pass of its own inside of a pass, over both devices."""

    @staticmethod
    def forward(ctx, x, began):
        ctx.began = began
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        with torch.enable_grad():
            tensors = leaves()
            loss = loss_of(tensors)
        at = inside(ctx.began); found = torch.autograd.grad(loss, tensors)
        keep(at, found)
        at = inside(ctx.began); own = torch.ones(next(sizes), device=grad.device)
        keep(at, [own], backward_pass=False)
        with torch.enable_grad():
            again = leaves()
            loss = loss_of(again)
        at = inside(ctx.began); loss.backward()
        keep(at, take_gradients(again))
        return grad * 2, None


def reentrant():
    tensors = leaves()
    # Used twice: the sum of two gradients is made by the engine, after the function in Python.
    began = []
    loss = sum((Reentrant.apply(t, began) + t * 2).sum().to(DEVICES[0]) for t in tensors)
    began += here(); loss.backward()
    at = began
    keep(at, take_gradients(tensors))


def checkpointed():
    """Begins passes inside of the pass, in PyTorch's own code."""
    tensors = leaves()
    weights = [torch.ones_like(t, requires_grad=True) for t in tensors]

    def run(x, weight):
        return (x * weight).sum()

    checkpoint = torch.utils.checkpoint.checkpoint
    parts = [
        checkpoint(lambda x, w=w: run(x, w), t * 2, use_reentrant=True, preserve_rng_state=False)
        for t, w in zip(tensors, weights)
    ]
    loss = sum(part.to(DEVICES[0]) for part in parts)
    at = here(); loss.backward()
    keep(at, take_gradients(tensors + weights))


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        raise ValueError("on purpose")


def failing():
    tensor = leaf(DEVICES[1])
    loss = Fails.apply(tensor * 3).sum()
    try:
        loss.backward()
    except ValueError:
        pass
    tensors = leaves()
    loss = loss_of(tensors)
    at = here(); loss.backward()
    keep(at, take_gradients(tensors))


def afterwards():
    """Frames of all sizes, one of which puts the next frame where the one lay that began the pass."""
    on_the_calling_thread()
    for size in range(120):
        names = {}
        body = "; ".join(f"a{i} = 0" for i in range(size)) or "pass"
        exec(compile(f"def padded(f):\n  {body}\n  f()", "<padded>", "exec"), names)
        names["padded"](allocate)


def allocate():
    at = here(); own = torch.ones(next(sizes), device=DEVICES[0])
    keep(at, [own], backward_pass=False)


def first_thread():
    for _ in range(20):
        tensors = leaves()
        loss = loss_of(tensors)
        at = here(); loss.backward()
        keep(at, take_gradients(tensors))


def second_thread():
    for _ in range(20):
        tensors = leaves()
        loss = loss_of(tensors)
        at = here(); found = torch.autograd.grad(loss, tensors)
        keep(at, found)


def third_thread():
    for _ in range(10):
        reentrant()
        checkpointed()


def fourth_thread():
    for _ in range(10):
        functions_and_hooks()
        failing()


def threads():
    """All at once: their nodes queue on the same two threads of the devices."""
    targets = [first_thread, second_thread, third_thread, fourth_thread, reentrant, step_in_a_thread]
    running = [threading.Thread(target=target) for target in targets]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def step_in_a_thread():
    for _ in range(20):
        step(leaves())


def optimizer():
    tensors = leaves()
    adam = torch.optim.Adam(tensors, foreach=False)
    loss = loss_of(tensors)
    at = here(); loss.backward()
    adam.step()
    kept.append(adam)
    keep(at, [t.grad for t in tensors])
    kept.append(tensors)


for case in (
    plain,
    callers,
    gradients,
    retained,
    on_the_calling_thread,
    functions_and_hooks,
    reentrant,
    checkpointed,
    failing,
    afterwards,
    threads,
    optimizer,
):
    case()
answer = [
    {"device": device, "frames": frames, "backward_pass": backward_pass, "bytes": size}
    for (device, frames, backward_pass), size in sites.items()
]
allocated = [torch.cuda.memory_allocated(i) for i in range(2)]
print(json.dumps({"sites": answer, "allocated": allocated}), flush=True)
sys.stdin.readline()
