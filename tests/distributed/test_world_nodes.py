"""Real processes open one world: started by torchrun, and by hand."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.ranks import ROOT

MODULE = "tests.distributed.world_run"


def environment(**more: str) -> dict[str, str]:
    """Of a process that no torchrun has started, with `more`."""
    ours = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]), "OMP_NUM_THREADS": "1"}
    theirs = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    return {key: value for key, value in os.environ.items() if key not in theirs} | ours | more


def launch(command: list[str], **more: str) -> subprocess.Popen:
    """Start it; its output is kept."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env=environment(**more), cwd=ROOT, **pipes)


def finish(process: subprocess.Popen) -> str:
    """Wait for it, and give what it said; it must have ended well."""
    try:
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, said
    return said


def worlds(folder: Path, size: int) -> list[dict]:
    """What each rank has written."""
    return [json.loads((folder / f"world{rank}.json").read_text()) for rank in range(size)]


def test_by_hand(tmp_path):
    """Four variables are enough on one machine. Rank 0 keeps the store, and leaves last: no other
    has anything to complain of."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, "-m", MODULE, str(tmp_path)]
    processes = [launch(command, RANK=str(rank), **common) for rank in range(2)]
    assert [finish(process) for process in processes] == ["", ""]
    found = worlds(tmp_path, 2)
    assert [world["place"] for world in found] == [[0, 2, 0, 2], [1, 2, 1, 2]]
    assert all(world["sums"] == [2.0, 1.0] for world in found)
    assert len({name for world in found for name in world["machines"]}) == 1


def test_by_torchrun(tmp_path):
    """Its agent keeps the store."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    finish(launch([*torchrun, "--nproc_per_node", "3", "-m", MODULE, str(tmp_path)]))
    for rank, world in enumerate(worlds(tmp_path, 3)):
        assert world == {
            "place": [rank, 3, rank, 3],
            "device": "cpu",
            "sums": [3.0, 3.0],
            "machines": ["0", "0", "0"],
        }
