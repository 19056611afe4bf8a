"""Processes of one machine that die, fail or get stuck in the middle of a run.

Real processes, real signals. Those that wait for torch's own patience are short of it
(death_job.SHORT); that of a user's run is checked by sum.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import pytest

from ftrecipes.config.errors import PeerError
from ftrecipes.runtime.judge import Patience
from ftrecipes.runtime.watcher import HOOK_SECONDS
from tests import ranks

JOB = str(ranks.ROOT / "tests" / "distributed" / "death_job.py")
SIZE = 3
LIMIT = 60


@pytest.fixture(autouse=True)
def quiet_torch(monkeypatch):
    """As a command sets it (runtime/log.py)."""
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")


def wait_until_ready(folder: Path, processes: Sequence[subprocess.Popen]) -> None:
    """Until every rank is in the middle."""
    deadline = time.monotonic() + LIMIT
    while len(list(folder.glob("ready*"))) < SIZE:
        assert time.monotonic() < deadline
        assert any(process.poll() is None for process in processes)
        time.sleep(0.05)


def start(folder: Path, *words: str) -> list[subprocess.Popen]:
    """The job as three ranks, the store in rank 0, as without torchrun."""
    arguments = [JOB, *words]
    return ranks.start(arguments, folder, size=SIZE)


def finish(processes: Sequence[subprocess.Popen], folder: Path) -> tuple[list[int], list[str]]:
    """Exit codes and what each rank told."""
    try:
        codes = [process.wait(LIMIT) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return codes, [(folder / f"rank{rank}.log").read_text() for rank in range(SIZE)]


def told(log: str) -> list[str]:
    """The errors in a log."""
    return re.findall(r"^error: .*", log, re.MULTILINE)


def test_a_rank_is_killed(tmp_path):
    """The one that keeps the store. The others name it, one of them in words."""
    victim = 0
    processes = start(tmp_path, "wait", "0")
    wait_until_ready(tmp_path, processes)
    processes[victim].kill()
    began = time.monotonic()
    codes, logs = finish(processes, tmp_path)
    assert time.monotonic() - began < 20
    others = [rank for rank in range(SIZE) if rank != victim]
    assert [codes[rank] for rank in others] == [PeerError.exit_code] * 2
    pid, host = processes[victim].pid, os.uname().nodename
    log = logs[others[0]]
    assert told(log) == [
        f"error: rank {victim} (host {host}, process {pid}) died without an error of its own, and "
        "the run ended."
    ]
    assert f"last phase of rank {victim}: step 5" in log
    assert "Traceback" not in "".join(logs)
    assert logs[others[1]] == ""


def test_torchrun_stops_the_others_first(tmp_path):
    """Its SIGTERM is there before anybody has looked; the death is told all the same."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    process = subprocess.Popen(
        [*command, "--nproc_per_node", str(SIZE), JOB, "wait", "0", str(tmp_path)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ranks.ROOT / "src")},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until_ready(tmp_path, [process])
        pid = int((tmp_path / "ready1").read_text())
        os.kill(pid, signal.SIGKILL)
        _, log = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
    assert "closing signal SIGTERM" in log
    assert len(told(log)) == 1
    assert f"rank 1 (host {os.uname().nodename}, process {pid}) died" in told(log)[0]
    assert "stopped by SIGTERM" not in log


def test_a_rank_fails(tmp_path):
    """It tells its own error, and alone: the others end at once with a code that says whose."""
    processes = start(tmp_path, "fail", "1")
    codes, logs = finish(processes, tmp_path)
    assert codes == [7, 3, 7]
    assert logs[1] == "error: rank 1: row 7 is broken\n  do: mend it\n"
    assert (logs[0], logs[2]) == ("", "")


def test_all_ranks_fail_alike(tmp_path):
    """It is told once."""
    processes = start(tmp_path, "all", "0")
    codes, logs = finish(processes, tmp_path)
    assert codes == [3, 3, 3]
    assert sorted(map(told, logs))[:2] == [[], []]
    assert re.fullmatch(r"error: rank \d: row 7 is broken\n  do: mend it\n", "".join(logs))


def test_a_rank_is_stuck(tmp_path):
    """A stopped process holds the others in a collective, where no exception reaches them."""
    processes = start(tmp_path, "stop", "1", "2")
    codes = [processes[rank].wait(LIMIT) for rank in (0, 2)]
    processes[1].kill()
    _, logs = finish(processes, tmp_path)
    assert codes == [7, 7]
    assert len(told(logs[0])) == 1
    assert "There was no progress for 2 s (--fsdp.timeout_seconds)" in logs[0]
    for rank, process in enumerate(processes):
        line = re.search(rf"^  rank {rank} \(.*\): step 5; .*", logs[0], re.MULTILINE).group()
        assert f"process {process.pid})" in line
        assert ("its process is stopped" in line) == (rank == 1)
    assert logs[2] == ""
    # The main threads were held, so the watch has called what notes how the run ended.
    for rank in (0, 2):
        assert "There was no progress" in (tmp_path / f"end{rank}").read_text()


def test_a_minute_is_enough():
    """Of the longest way to an end: silence, a second look, a main thread that does not end."""
    patience = Patience()
    assert patience.silent + patience.second_look + patience.grace + HOOK_SECONDS < 55
    assert {field.name for field in fields(Patience)} == {
        *("look", "silent", "store", "second_look", "grace", "own_grace")
    }
    # The store is found gone before the ranks behind it are called silent.
    assert patience.store + 2 * patience.look < patience.silent
