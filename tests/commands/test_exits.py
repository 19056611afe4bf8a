"""How a command ends: code and words for each way."""

import re
from pathlib import Path

import pytest

from ftrecipes.commands.exits import INTERRUPTED, end
from ftrecipes.config.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    ModelError,
    RecipeError,
    TrainingError,
)

DOCS = Path(__file__).parents[2] / "docs" / "how-it-works.md"
CODES = {ConfigError: 2, DataError: 3, ModelError: 4, CheckpointError: 5, TrainingError: 6}


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


def test_every_error_has_a_code_of_its_own():
    assert set(RecipeError.__subclasses__()) == CODES.keys()


def test_a_fault_of_ours_shows_its_traceback(capsys):
    assert leave(raising(KeyError("x"))) == 1
    shown = capsys.readouterr().err
    assert "Traceback" in shown
    assert "KeyError: 'x'" in shown


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
