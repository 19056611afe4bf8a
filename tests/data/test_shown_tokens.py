"""The tokens around a finding: where the row goes on, and what can be trained of it."""

import numpy as np

from ftrecipes.config.sections import DataConfig
from ftrecipes.data.dialog_checks import tokens_around
from ftrecipes.data.findings import finding
from ftrecipes.data.sampled import Dialog
from ftrecipes.data.split_ids import Split
from tests.data.loader_rows import make_rows
from tests.tiny_tokenizers import build_tokenizer

TOKENIZER = build_tokenizer("chatml")


def shown(position: int) -> str:
    """Of two rows of 30 letters each, all of them with a label."""
    [letter] = TOKENIZER("a", add_special_tokens=False)["input_ids"]
    rows = make_rows([30, 30])
    rows.input_ids[:] = rows.labels[:] = letter
    split = Split(rows, TOKENIZER, DataConfig(), 64, "text")
    assert np.all(split.is_trained)
    return finding("answer-cut", "text", tokens=split.around(position)).shown


def test_a_row_that_goes_on_is_shown_to():
    assert shown(15) == f"...[{'|'.join('a' * 13)}]..."
    assert shown(29) == f"...[{'|'.join('a' * 7)}]"
    assert shown(57) == f"...[{'|'.join('a' * 9)}]"


def test_the_first_position_of_a_row_is_never_trained():
    assert shown(0) == f"a[{'|'.join('a' * 6)}]..."
    assert shown(30) == f"a[{'|'.join('a' * 6)}]..."
    assert shown(36) == f"a[{'|'.join('a' * 12)}]..."


def of_dialog(position: int, *, first: int) -> str:
    """Of a dialog of 30 letters, whose row begins with letter `first` and is trained whole."""
    dialog = Dialog(
        *("row 1", [], [], None, "a" * 30, [1] * 30),
        offsets=[(at, at + 1) for at in range(30)],
        is_trained=np.arange(30) >= first,
        first=first,
    )
    return finding("answer-cut", "text", tokens=tokens_around(dialog, position)).shown


def test_tokens_of_a_dialog():
    assert of_dialog(0, first=0) == f"a[{'|'.join('a' * 6)}]..."
    assert of_dialog(15, first=0) == f"...[{'|'.join('a' * 13)}]..."
    # A row that was cut at the left begins within the dialog.
    assert of_dialog(12, first=10) == f"...aaaaa[{'|'.join('a' * 8)}]..."
