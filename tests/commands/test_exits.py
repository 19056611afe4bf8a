"""How a command ends: code and words for each way."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from ftrecipes.commands import exits
from ftrecipes.commands.exits import INTERRUPTED, end
from ftrecipes.config.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    ModelError,
    PeerError,
    RecipeError,
    TrainingError,
)

DOCS = Path(__file__).parents[2] / "docs" / "how-it-works.md"
ERRORS = (ConfigError, DataError, ModelError, CheckpointError, TrainingError, PeerError)
CODES = dict(zip(ERRORS, range(2, 8), strict=True))
RANKS = {"RANK": "1", "WORLD_SIZE": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


def leave(action) -> int:
    with pytest.raises(SystemExit) as ended:
        end(action)
    return ended.value.code


def raising(error):
    def action():
        raise error

    return action


@pytest.mark.parametrize("kind", CODES, ids=lambda kind: kind.__name__)
def test_a_users_mistake_is_its_message_its_notes_and_its_code(kind, capsys):
    error = kind("what is wrong\n  do: this")
    error.add_note("The traceback is in out/error.txt")
    assert leave(raising(error)) == CODES[kind]
    shown = capsys.readouterr()
    expected = "error: what is wrong\n  do: this\nThe traceback is in out/error.txt\n"
    assert (shown.out, shown.err) == ("", expected)


def test_torchrun_repeats_the_words_of_an_error(tmp_path, monkeypatch):
    """As its own classes read what a process of it leaves."""
    file = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    leave(raising(DataError("row 4 is broken\n  do: mend it")))
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=3, error_file=str(file))
    shown = ChildFailedError("recipe", {0: failure}).format_msg()
    assert "row 4 is broken\n    do: mend it" in shown
    assert abs(failure.timestamp - time.time()) < 60


def test_every_error_has_a_code_of_its_own():
    assert set(RecipeError.__subclasses__()) == CODES.keys()


def test_a_fault_of_ours_shows_its_traceback(capsys):
    assert leave(raising(KeyError("x"))) == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "KeyError: 'x'" in shown


def take_too_much():
    """4 EiB of a CPU's memory."""
    torch.empty(2**60)


@pytest.mark.parametrize(
    "action",
    [take_too_much, raising(torch.OutOfMemoryError("CUDA out of memory")), raising(MemoryError())],
)
def test_too_little_memory_is_said_with_what_helps(action, capsys):
    assert leave(action) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: out of memory: ")
    assert "do: try --activation_checkpointing full" in told
    assert "Traceback" not in told


def test_an_interrupt_is_no_fault(capsys):
    assert leave(raising(KeyboardInterrupt())) == INTERRUPTED == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_success_is_zero_and_silent(capsys):
    assert leave(lambda: None) == 0
    assert capsys.readouterr() == ("", "")


def test_the_documented_codes_are_these():
    table = DOCS.read_text(encoding="utf-8").partition("## Exit codes")[2]
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert documented == {0, 1, INTERRUPTED, *CODES.values()}


@pytest.mark.parametrize(
    ("kind", "is_told", "local_rank", "shown"),
    [
        # All ranks find the same fault of the settings, and one of a machine tells it.
        (ConfigError, None, "0", "error: broken\n"),
        (ConfigError, None, "1", ""),
        # One rank found it, and has told the others.
        (ConfigError, False, "1", "error: broken\n"),
        (DataError, None, "1", "error: rank 1: broken\n"),
        # All raise it, and the text names the rank where it came from.
        (CheckpointError, None, "1", "error: broken\n"),
        (DataError, True, "1", ""),
        (PeerError, False, "1", "error: broken\n"),
        (PeerError, True, "1", ""),
    ],
)
def test_what_several_processes_find_is_told_once(kind, is_told, local_rank, shown):
    """In a process of its own: of several it leaves without tidying up what may wait for others."""
    action = f"""
from ftrecipes.commands.exits import end
from ftrecipes.config.errors import *
error = {kind.__name__}("broken")
error.is_told = {is_told}
def action():
    raise error
end(action)
"""
    ranks = RANKS | {"LOCAL_RANK": local_rank, exits.STARTED_BY_TORCHRUN: "run"}
    done = subprocess.run(
        [sys.executable, "-c", action], env=os.environ | ranks, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (CODES[kind], shown)


def test_of_processes_started_by_hand_each_tells_its_own_fault(monkeypatch, capsys):
    """It may be the only one with a wrong flag, and the others only wait for it."""
    monkeypatch.delenv(exits.STARTED_BY_TORCHRUN, raising=False)
    monkeypatch.setattr(exits, "_leave", lambda code, words: sys.exit(code))
    for name, value in RANKS.items():
        monkeypatch.setenv(name, value)
    assert leave(raising(ConfigError("broken"))) == ConfigError.exit_code
    assert capsys.readouterr().err == "error: broken\n"
