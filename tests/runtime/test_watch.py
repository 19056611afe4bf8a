"""What the watch makes of reports and process ids: a Judge, given what a store would have told.

Ranks of this machine are real processes; of others there are only reports. Time is told, not spent.
"""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch.distributed as dist

from ftrecipes.runtime import processes
from ftrecipes.runtime.findings import ENDED, Report
from ftrecipes.runtime.judge import Judge, Patience
from ftrecipes.runtime.post import Post

PATIENCE = Patience()
TIMEOUT = 100.0


class Scene:
    """Rank 0 on host a, with ranks 1 on a and 2, 3 on b unless `places` says otherwise."""

    def __init__(self, places=("a", "a", "b", "b"), *, me=0):
        self.now = 0.0
        self.size = len(places)
        self.reports = [
            Report(rank, f"host {place}", 1000 + rank, place, "7", phase=f"phase {rank}")
            for rank, place in enumerate(places)
        ]
        self.own = self.reports[me]
        self.post = Post(
            dist.HashStore(),
            size=self.size,
            report=lambda: self.own,
            clock=lambda: self.now,
            seconds=1.0,
        )
        self.judge = Judge(
            self.post,
            me=self.own,
            size=self.size,
            clock=lambda: self.now,
            patience=PATIENCE,
            address="a:29500",
        )
        self.idle_seconds = 0.0
        self.tell(*range(self.size))

    def tell(self, *ranks: int, **changes) -> None:
        """New reports of `ranks` arrive."""
        for rank in ranks:
            report = self.reports[rank]
            self.reports[rank] = replace(report, count=report.count + 1, **changes)
            self.post.reports[rank] = self.reports[rank]
            self.post.moved_at[rank] = self.post.read_at[rank] = self.now
        self.post.contact_at = self.now

    def run(self, seconds: int, *, alive: tuple[int, ...] = ()):
        """The first finding of a look each second, while `alive` report."""
        for _ in range(seconds):
            self.now += 1.0
            if alive:
                self.tell(*alive)
            own = replace(self.own, idle_seconds=self.idle_seconds)
            finding = self.judge.look(own, timeout_seconds=TIMEOUT)
            if finding:
                return finding
        return None


@pytest.fixture
def child():
    """A process of this machine, as a report names it; it waits until its input is closed."""
    command = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as process:
        process.stdout.read(1)
        yield process
        process.kill()


def here(scene: Scene, rank: int, pid: int) -> None:
    """Let `rank` be the process `pid`."""
    scene.tell(rank, pid=pid, started=processes.started(pid))


def test_a_machine_is_silent_when_all_its_ranks_are():
    """Rank 1 listens to rank 2, which is next; both of b are named after a second look."""
    scene = Scene(me=1)
    assert scene.run(29, alive=(0,)) is None
    finding = scene.run(8, alive=(0,))
    assert finding.ranks == (2, 3)
    assert "rank 2 (host host b, process 1002), rank 3" in finding.text
    assert "last phase of rank 3: phase 3" in finding.text


def test_a_rank_that_holds_its_breath_is_left_to_its_neighbours():
    """One call may keep all threads of a process waiting; its machine is there."""
    assert Scene(me=1).run(120, alive=(0, 3)) is None


def test_a_rank_that_took_leave_is_not_silent():
    scene = Scene(me=1)
    scene.tell(2, 3, left=ENDED)
    assert scene.run(120, alive=(0,)) is None


def test_a_rank_that_was_stopped_alone_ends_the_others():
    scene = Scene(me=1)
    scene.tell(2, left="stopped by SIGTERM")
    finding = scene.run(40, alive=(0, 3))
    assert finding.ranks == (2,)
    assert "left before the others: stopped by SIGTERM" in finding.text


def test_a_failed_collective_makes_it_quick():
    """Rank 0 listens to its neighbour only, and finds who of the others is gone in a few looks."""
    scene = Scene(("a", "b", "c"), me=0)
    scene.judge.suspect()
    finding = scene.run(7, alive=(1,))
    assert finding.ranks == (2,)
    scene = Scene(("a", "b", "c"), me=0)
    scene.judge.suspect()
    assert scene.run(7, alive=(1, 2)) is None
    assert scene.judge.is_calm


def test_the_store_is_gone():
    scene = Scene(("a", "b", "b"), me=1)
    finding = scene.run(22)
    assert finding.ranks == (0,)
    assert "(a:29500) has not answered for 21 s" in finding.text
    # With a failed collective beside it there is no doubt.
    scene = Scene(("a", "b", "b"), me=1)
    scene.judge.suspect()
    assert scene.run(6).ranks == (0,)


def test_nobody_makes_progress():
    scene = Scene(me=1)
    scene.idle_seconds = TIMEOUT + 1
    finding = scene.run(8, alive=(0, 2))
    assert f"no progress for {TIMEOUT:.0f} s" in finding.text
    lines = [line.strip() for line in finding.text.splitlines()[1:-1]]
    assert lines == [
        "rank 0 (host host a, process 1000): phase 0; 0 s since its last progress",
        "rank 1 (host host a, process 1001): phase 1; 101 s since its last progress",
        "rank 2 (host host b, process 1002): phase 2; 0 s since its last progress",
        "rank 3 (host host b, process 1003): phase 3; no sign of life",
    ]


def test_a_neighbour_dies(child):
    """A zombie is dead. But first what it said last is read."""
    scene = Scene(me=0)
    here(scene, 1, child.pid)
    assert scene.run(60, alive=(2, 3)) is None
    end(child)
    assert scene.run(1) is None
    assert not scene.judge.is_calm
    scene.now += 1
    scene.tell(1)
    finding = scene.run(1)
    assert finding.ranks == (1,)
    assert f"process {child.pid}) died without an error of its own" in finding.text


def test_a_neighbour_that_took_leave_has_not_died(child):
    scene = Scene(me=0)
    here(scene, 1, child.pid)
    assert scene.run(1) is None
    end(child)
    assert scene.run(1) is None
    scene.now += 1
    scene.tell(1, left=ENDED)
    assert scene.run(5, alive=(1, 2, 3)) is None
    assert scene.judge.is_calm


def test_a_neighbour_dies_with_the_store(child):
    """Nobody can say what it said last; what is seen here holds."""
    scene = Scene(("a", "a"), me=1)
    here(scene, 0, child.pid)
    assert scene.run(1) is None
    end(child)
    assert scene.run(3).ranks == (0,)


def test_a_process_id_of_another_host_means_nothing(child):
    """Two machines may come from one image and share all names: a process of another one that was
    never seen here is not dead here. Nor is an id that is another process's by now."""
    scene = Scene(("a", "a"), me=0)
    here(scene, 1, child.pid)
    scene.tell(1, started="1")
    assert scene.run(60, alive=(1,)) is None


def test_the_first_that_can_tells(child):
    scene = Scene(("a", "a", "b"), me=1)
    finding = found(Scene(me=1))
    assert scene.judge.tells(finding)
    here(scene, 0, child.pid)
    scene.run(1)
    assert not scene.judge.tells(finding)
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    assert scene.judge.tells(finding)
    child.send_signal(signal.SIGCONT)
    scene.tell(0, left=ENDED)
    assert scene.judge.tells(finding)


def test_who_failed_tells_it_where_it_is():
    finding = replace(found(Scene(me=1)), place="a")
    assert not Scene(("a", "b"), me=0).judge.tells(finding)
    assert Scene(("b", "a"), me=0).judge.tells(finding)


def end(child: subprocess.Popen) -> None:
    """Kill it and leave it a zombie."""
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)


def found(scene: Scene):
    """Some finding of other ranks."""
    return scene.run(60, alive=(0,))
