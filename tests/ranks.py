"""Checks that run on several processes at once: started once, reported one by one.

A module of checks has functions `check_<name>(folder)`, which every rank calls in the order of the
file, inside one process group (gloo, CPU). A spawn is expensive, so a module holds many checks.

    RESULTS = ranks.fixture("tests.distributed.checks_shard", size=2)     # a pytest fixture
    @pytest.mark.parametrize("name", ranks.names("tests.distributed.checks_shard"))
    def test_two_ranks(RESULTS, name): ranks.assert_passed(RESULTS, name)
"""

import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PASSED = "passed"
AFTER_FAILURE_SECONDS = 5


def names(module: str) -> list[str]:
    """Names of the checks of `module`, in the order of its file (which is not imported)."""
    path = ROOT / Path(*module.split(".")).with_suffix(".py")
    return re.findall(r"^def check_(\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE)


def fixture(*modules: str, size: int, limit: float = 240) -> Callable:
    """A session fixture with the results of all checks of `modules`, whose names differ, on `size`
    ranks."""

    @pytest.fixture(scope="session")
    def results(tmp_path_factory) -> dict[str, list[str]]:
        folder = tmp_path_factory.mktemp("ranks")
        return run(["-m", "tests.ranks", *modules], folder, size=size, limit=limit)

    return results


def run(arguments: Sequence[str], folder: Path, *, size: int, limit: float) -> dict[str, list[str]]:
    """Check -> what became of it on each rank: `passed`, a traceback, or `not reached`."""
    processes = start(arguments, folder, size=size)
    wait(processes, limit=limit)
    reports = [json.loads(_report(folder, rank).read_text()) for rank in range(size)]
    found = {name for report in reports for name in report}
    return {name: [report.get(name, "not reached") for report in reports] for name in found}


def assert_passed(results: dict[str, list[str]], name: str) -> None:
    """Fail with the first traceback of a check that did not pass on every rank."""
    outcomes = results.get(name, ["not reached"])
    wrong = [f"rank {rank}: {text}" for rank, text in enumerate(outcomes) if text != PASSED]
    told = [text for text in wrong if "not reached" not in text]
    assert not wrong, (told or wrong)[0]


def start(arguments: Sequence[str], folder: Path, *, size: int) -> list[subprocess.Popen]:
    """`python ARGUMENTS folder` as `size` ranks; their output goes to rank<N>.log in `folder`."""
    processes = []
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    for rank in range(size):
        environment = os.environ | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
        }
        _report(folder, rank).write_text("{}")
        with open(folder / f"rank{rank}.log", "w", encoding="utf-8") as output:
            command = [sys.executable, *arguments, str(folder)]
            processes.append(
                subprocess.Popen(command, env=environment, stdout=output, stderr=output, cwd=ROOT)
            )
    return processes


def wait(processes: Sequence[subprocess.Popen], *, limit: float) -> list[int]:
    """Exit codes; what still runs `limit` seconds on, or soon after another failed, is killed."""
    deadline = time.monotonic() + limit
    while any(process.poll() is None for process in processes):
        if any(process.poll() for process in processes):
            deadline = min(deadline, time.monotonic() + AFTER_FAILURE_SECONDS)
        if time.monotonic() > deadline:
            for process in processes:
                process.send_signal(signal.SIGKILL)
        time.sleep(0.05)
    return [process.wait() for process in processes]


def _report(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.json"


def main(modules: Sequence[str], folder: Path) -> None:
    """One rank: every check of `modules`; after one that failed the others can not go on."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    outcomes: dict[str, str] = {}
    for own, name in [(module, name) for module in modules for name in names(module)]:
        checks = importlib.import_module(own)
        try:
            getattr(checks, f"check_{name}")(folder)
            outcomes[name] = PASSED
        except BaseException:  # noqa: BLE001  reported, and this rank ends
            outcomes[name] = traceback.format_exc()
        _report(folder, dist.get_rank()).write_text(json.dumps(outcomes))
        if outcomes[name] != PASSED:
            os._exit(1)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:-1], Path(sys.argv[-1]))
