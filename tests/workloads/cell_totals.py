"""Imported by a notebook: what PyTorch itself says that every run of a cell changes.

mark() is the first statement of a cell: it notes what every device's allocator has (`memory_allocated`) and
has ever allocated. resume(run) says that an earlier run goes on. take(n) allocates n floats and knows whose
they are; own(tensor) says so of a tensor that was made in another way. truth() gives of every run its number,
what the totals changed by until the next mark, what it allocated, and what of that is left; of runs that
are marked by the kernel's own hook before a cell runs, whether that found the same totals. Garbage is
collected when a cell says so: in the middle of a mark it would be the run's before or after.
"""

import gc

import torch
from torch.multiprocessing.reductions import StorageWeakRef

DEVICES = range(torch.cuda.device_count())
# [run, allocated now, allocated ever]
_marks = []
# [execution count, bytes that other runs' threads have allocated, of the run's own the same]
_runs = []
# [run, bytes, storage]
_taken = []
_hook = None
_hooks_agree = True


def _totals():
    ever = [torch.cuda.memory_stats(device)["allocated_bytes.all.allocated"] for device in DEVICES]
    return [torch.cuda.memory_allocated(device) for device in DEVICES], ever


def _before(info):
    global _hook
    _hook = _totals()


def install(shell):
    gc.disable()
    shell.events.register("pre_run_cell", _before)


def mark(number=True):
    global _hooks_agree
    totals = _totals()
    _hooks_agree = _hooks_agree and _hook == totals
    # Some versions have counted it already.
    inputs = get_ipython().history_manager.input_hist_raw
    _runs.append([len(inputs) - 1 if number else None, 0])
    _marks.append([len(_runs) - 1, *totals])
    return len(_runs) - 1


def resume(run):
    _marks.append([run, *_totals()])


def _current():
    return _marks[-1][0]


def take(count, device=0, run=None):
    """`run`: whose it is, where that is not the one that runs."""
    _, before = _totals()
    tensor = torch.empty(count, device=f"cuda:{device}")
    _, after = _totals()
    _note(tensor, sum(after) - sum(before), run)
    return tensor


def own(tensor, run=None):
    """Of a size that the allocator rounds up to 512 bytes."""
    _note(tensor, -(-tensor.nbytes // 512) * 512, run)
    return tensor


def _note(tensor, size, run):
    current = _current()
    run = current if run is None else run
    if run != current:
        _runs[current][1] -= size
        _runs[run][1] += size
    _taken.append([run, size, StorageWeakRef(tensor.untyped_storage())])


def truth():
    marks = _marks + [[None, *_totals()]]
    runs = [dict(cell=count, change=[0] * len(DEVICES), allocated=moved, left=0) for count, moved in _runs]
    for (run, now, ever), (_, later_now, later_ever) in zip(marks, marks[1:]):
        for device in DEVICES:
            runs[run]["change"][device] += later_now[device] - now[device]
            runs[run]["allocated"] += later_ever[device] - ever[device]
    for run, size, storage in _taken:
        runs[run]["left"] += 0 if storage.expired() else size
    return {"runs": runs, "hooks_agree": _hooks_agree, "total": sum(marks[-1][1])}
