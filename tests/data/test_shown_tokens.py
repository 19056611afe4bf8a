"""The tokens around a finding: where the row goes on, and what can be trained of it."""

import numpy as np

from ftrecipes.config.sections import DataConfig
from ftrecipes.data.findings import finding
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
