"""What the watch is made of: its clock, whose fault an error is, and names of processes."""

import os
import subprocess
import sys
from dataclasses import replace

import torch
import torch.distributed as dist

from ftrecipes.config.errors import ModelError
from ftrecipes.runtime import processes
from ftrecipes.runtime.findings import Report, comes_from_others
from ftrecipes.runtime.judge import Clock, Judge, Patience


def test_the_clock_stands_still_while_the_process_does(monkeypatch):
    """Or a rank that was stopped for a while would call all others silent."""
    times = iter([0.0, 1.0, 500.0, 501.0])
    monkeypatch.setattr("time.monotonic", lambda: next(times))
    clock = Clock(longest_tick=3.0)
    seen = []
    for _ in range(3):
        clock.tick()
        seen.append(clock())
    assert seen == [1.0, 4.0, 5.0]


def test_errors_that_others_caused():
    """gloo has no error of its own; torch's others have. Also what was raised because of them."""
    lost = RuntimeError("[/x/third_party/gloo/gloo/transport/tcp/pair.cc:5] Connection closed")
    assert comes_from_others(lost)
    assert comes_from_others(dist.DistBackendError("NCCL error"))
    assert comes_from_others(dist.DistNetworkError("Broken pipe"))
    wrapped = ModelError("can not be loaded")
    wrapped.__cause__ = lost
    assert comes_from_others(wrapped)
    assert not comes_from_others(RuntimeError("CUDA out of memory"))
    assert not comes_from_others(torch.OutOfMemoryError("CUDA out of memory"))


def test_processes_of_one_place_know_each_other_by_pid_and_start():
    show = "from ftrecipes.runtime.processes import place, started; import os\n"
    show += "print(place()); print(started(os.getppid()))"
    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [processes.place(), processes.started(os.getpid())]
    assert "" not in done.stdout.splitlines()
    # A process with an id that nobody has: ids end below 2**22 (proc(5), pid_max).
    assert processes.started(2**22 + 1) == ""
    assert not processes.is_stopped(2**22 + 1)


class Reports:
    """What a judge needs of a post: the reports of others, read this moment."""

    def __init__(self, clock, reports):
        self.clock, self.reports, self.wanted = clock, reports, frozenset()

    @property
    def contact_at(self):
        return self.clock()

    @property
    def moved_at(self):
        return dict.fromkeys(self.reports, self.clock())

    read_at = moved_at


def test_a_rank_that_was_slow_and_has_moved_on_is_not_stuck():
    """The second look, some seconds later, asks again."""
    seconds = [0.0]
    me, other = (Report(rank, "host", 2**22 + rank, f"place{rank}", "") for rank in (0, 1))
    post = Reports(lambda: seconds[0], {1: other})
    judge = Judge(
        post, me=me, size=2, clock=lambda: seconds[0], patience=Patience(), address="host:1"
    )
    stuck, moved = replace(me, idle_seconds=16.0), replace(me, idle_seconds=1.0)
    assert judge.look(stuck, timeout_seconds=15) is None
    seconds[0] += 6
    assert judge.look(moved, timeout_seconds=15) is None
    assert judge.look(stuck, timeout_seconds=15) is None
    seconds[0] += 6
    assert "no progress for 15 s" in judge.look(stuck, timeout_seconds=15).text
