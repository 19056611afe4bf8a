"""The log: rank 0 on standard error, one word for the level, other ranks quiet."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
CODE = """
from ftrecipes.runtime import log
log.start()
log.start()
log.info("one")
log.warning("two\\n  \\x1b[2J\\tthree")
with log.progress(3, unit="row") as bar:
    bar.update(3)
"""
TOLD = "info: one\nwarning: two\n  \\x1b[2J\\tthree\n"


@pytest.mark.parametrize(
    ("rank", "expected"),
    [("0", TOLD), ("", TOLD), ("1", "")],
)
def test_rank_0_writes_and_the_others_are_quiet(rank, expected):
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    environment |= {"PYTHONPATH": str(SOURCE), "WORLD_SIZE": "2"}
    environment |= {"RANK": rank} if rank else {}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    assert done.stderr == expected


def test_what_the_profiler_says_of_itself_is_not_shown():
    code = (
        "from ftrecipes.runtime import log; log.start()\n"
        "from torch.profiler import profile\n"
        "with profile(): pass\n"
    )
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    environment.pop("KINETO_LOG_LEVEL", None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")
