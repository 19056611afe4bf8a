"""Streams that the caller closed or stopped reading, and which rank tells a fault."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SETTINGS = "--model_name o/m --dataset o/d --output_dir none"
RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK")


def run(line: str, **variables: str) -> subprocess.CompletedProcess:
    """Run `line` in bash, where `ftrecipes` and `recipe` are ours."""
    environment = {name: text for name, text in os.environ.items() if name not in RANKS}
    python = shlex.quote(sys.executable)
    functions = (
        f'ftrecipes() {{ {python} -m ftrecipes "$@"; }}; '
        f'recipe() {{ {python} recipes/finetuning.py "$@"; }}; set -o pipefail; '
    )
    return subprocess.run(
        ["bash", "-c", functions + line],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT / "src")} | variables,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("ftrecipes --help >&-", 0),
        ("ftrecipes config --help >&-", 0),
        ("recipe --help >&-", 0),
        (f"ftrecipes config {SETTINGS} >&-", 0),
        (f"ftrecipes config {SETTINGS} | true", 0),
        ("recipe --help | true", 0),
        ("ftrecipes config --lr fast 2>&-", 2),
        ("recipe --lr fast 2>&-", 2),
        ("recipe --lr fast >&- 2>&-", 2),
    ],
)
def test_closed_streams_change_no_exit_code(line, code):
    done = run(line)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


@pytest.mark.parametrize(
    ("variables", "speaks"),
    [
        ({}, True),
        ({"RANK": "0", "WORLD_SIZE": "2"}, True),
        ({"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}, False),
        ({"RANK": "1", "WORLD_SIZE": "2"}, True),  # started by hand: its words may be its own
        ({"RANK": "1", "WORLD_SIZE": "1"}, True),  # no world has such a rank
        ({"RANK": "one", "WORLD_SIZE": "2"}, True),
    ],
)
def test_the_first_rank_tells_a_fault_of_the_settings(variables, speaks):
    done = run("recipe --lr fast", **variables)
    assert done.returncode == 2
    assert ("--lr: bad value" in done.stderr) is speaks
    assert speaks or done.stderr == ""
