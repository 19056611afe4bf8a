"""Two hosts, each in a network namespace of its own: one loses its power, or the cable is out."""

import os
import re
import time
from pathlib import Path

from tests.distributed import hosts as two
from tests.ranks import ROOT

JOB = "tests/distributed/death_job.py"
LIMIT = 60


def start(pair, folder: Path, *seconds: str) -> list:
    """torchrun on both, one rank each, in the middle of the job."""
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    environment["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    processes = [
        host.start(
            two.torchrun(pair, number, [JOB, "wait", "0", *seconds, str(folder)]),
            folder / f"log{number}",
            environment,
        )
        for number, host in enumerate(pair)
    ]
    deadline = time.monotonic() + LIMIT
    while len(list(folder.glob("ready*"))) < 2:
        assert time.monotonic() < deadline, logs(folder)
        assert all(process.poll() is None for process in processes), logs(folder)
        time.sleep(0.05)
    return processes


def logs(folder: Path) -> list[str]:
    return [(folder / f"log{number}").read_text() for number in (0, 1)]


def wait_for(path: Path, words: str) -> None:
    deadline = time.monotonic() + LIMIT
    while words not in path.read_text():
        assert time.monotonic() < deadline, path.read_text()
        time.sleep(0.05)


def test_the_first_host_is_killed(pair, tmp_path):
    """With all that runs there, the store too. The other one says who died."""
    processes = start(pair, tmp_path)
    two.kill(processes[0])
    began = time.monotonic()
    try:
        assert processes[1].wait(LIMIT) != 0
        assert time.monotonic() - began < 45
    finally:
        two.kill(processes[1])
    log = logs(tmp_path)[1]
    (told,) = re.findall("^error: .*", log, re.MULTILINE)
    assert "rank 0 (host first, process " in told
    assert "last phase of rank 0: step 5" in log
    assert "gloo" not in log


def test_the_cable_is_out(pair, tmp_path):
    """Nothing arrives, so no connection is closed and both hosts wait in a collective. torchrun of
    the second waits on for the first; what it has started ends."""
    processes = start(pair, tmp_path, "100")
    pair[1].unplug()
    try:
        wait_for(tmp_path / "log0", "rank 1 (host second, process ")
        wait_for(tmp_path / "log1", "rank 0 (host first, process ")
    finally:
        for process in processes:
            two.kill(process)
    first, second = logs(tmp_path)
    assert "gave no sign of life for" in first
    assert f"({pair[0].address}:" in second
    assert "has not answered for 4 s" in second
    assert "not to be reached any more: rank 0 (host first" in second
