"""What becomes of rows that are too long: nothing is lost unsaid."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftrecipes.data.facts import IGNORED
from ftrecipes.data.kinds import TokenRow
from ftrecipes.data.lengths import fit_rows
from ftrecipes.data.loader import Loader
from tests.data.dialogs import rows_of, tokenize
from tests.tiny_tokenizers import build_tokenizer

TOKENIZER = build_tokenizer("none")


def row(prompt: int, answer: int, *, first: int = 10) -> dict:
    """Ids that count up, so that each position can be told."""
    ids = list(range(first, first + prompt + answer))
    return {"input_ids": ids, "labels": [IGNORED] * prompt + ids[prompt:]}


def fit(rows, *, context_length, truncation):
    return tokenize(rows, TOKENIZER, context_length=context_length, truncation=truncation)


def trained(token_rows) -> list[int]:
    """The tokens that the loss is taken over, in order: never the first of a row."""
    loader = Loader(token_rows, strategy="packing", batch_size=1, context_length=4096, seed=0)
    batches = [loader.micro_batch([index]) for index in range(len(token_rows))]
    return [label for batch in batches for label in batch.labels.tolist() if label != IGNORED]


def test_left_keeps_the_end():
    """The first position that is left has nothing before it, so that its token is lost too."""
    token_rows = fit([row(3, 2), row(3, 17)], context_length=8, truncation="left")
    assert rows_of(token_rows)[1][0] == list(range(22, 30))
    assert trained(token_rows) == [13, 14, *range(23, 30)]
    assert token_rows.report == [
        "1 of 2 rows are longer than 8 positions and were cut at the left: 12 of 25 positions and "
        "10 of 19 tokens to train on are lost",
        "53% of the tokens to train on are lost to their length: raise --context_length, or "
        "choose another --data.truncation (right, left, split, drop, error)",
    ]


def test_left_loses_nothing_to_train_on_while_only_the_prompt_is_cut():
    token_rows = fit([row(20, 5)], context_length=8, truncation="left")
    assert trained(token_rows) == [30, 31, 32, 33, 34]
    assert token_rows.report == [
        "1 of 1 rows are longer than 8 positions and were cut at the left: 17 of 25 positions and "
        "0 of 5 tokens to train on are lost"
    ]


def test_split_trains_every_token_once():
    """P14: the tail's labels survive; parts share a position, whose label is in the first one."""
    rows = [row(3, 17), row(2, 2, first=50)]
    token_rows = fit(rows, context_length=8, truncation="split")
    assert [ids for ids, _ in rows_of(token_rows)] == [
        [10, 11, 12, 13, 14, 15, 16, 17],
        [17, 18, 19, 20, 21, 22, 23, 24],
        [24, 25, 26, 27, 28, 29],
        [50, 51, 52, 53],
    ]
    assert trained(token_rows) == [*range(13, 30), 52, 53]
    assert token_rows.num_tokens == 19
    assert token_rows.sources[1:] == [
        "test rows row 1 part 2",
        "test rows row 1 part 3",
        "test rows row 2",
    ]
    assert token_rows.report == [
        "1 of 2 rows are longer than 8 positions and were split into 3 rows: 0 of 19 tokens to "
        "train on are lost"
    ]


def test_rows_that_fit_are_never_split():
    """P14: two rows of 20 positions, a context of 32: no row is cut to fill up another."""
    token_rows = fit([row(5, 15), row(5, 15)], context_length=32, truncation="split")
    assert token_rows.lengths.tolist() == [20, 20]
    assert token_rows.report == []
    packed = Loader(token_rows, strategy="packing", batch_size=1, context_length=32, seed=0)
    assert [len(batch) for [batch] in packed.step_plan(0)] == [1, 1]


def test_parts_of_the_prompt_alone_are_left_out():
    token_rows = fit([row(20, 3)], context_length=8, truncation="split")
    assert token_rows.sources == ["test rows row 1 part 3", "test rows row 1 part 4"]
    assert trained(token_rows) == [30, 31, 32]


def test_a_row_without_tokens_stays_one_row_to_be_reported():
    token_rows = fit([row(30, 0), row(1, 1)], context_length=8, truncation="split")
    assert len(token_rows) == 2
    assert "1 of 2 rows have no token to train on and are passed over" in token_rows.report[-1]


@given(
    rows=st.lists(
        st.lists(st.booleans(), min_size=1, max_size=40), min_size=1, max_size=6
    ),
    context_length=st.integers(2, 12),
    truncation=st.sampled_from(["right", "left", "split", "drop"]),
)  # fmt: skip
@settings(max_examples=300, deadline=None, derandomize=True)
def test_tokens_in_are_tokens_out_and_tokens_reported_lost(rows, context_length, truncation):
    """For any rows, any labels, any length."""
    made = []
    for number, marks in enumerate(rows):
        ids = np.arange(len(marks), dtype=np.int32) + 100 * number
        labels = np.where(np.array(marks), ids, IGNORED).astype(np.int32)
        made.append((f"row {number}", TokenRow(ids, labels)))
    report = []
    limits = {"context_length": context_length, "truncation": truncation}
    kept = fit_rows(made, **limits, report=report)
    tokens_in, tokens_out = (
        [int(label) for _, row in some for label in row.labels[1:] if label != IGNORED]
        for some in (made, kept)
    )
    lost = re.search(r"(\d+) of (\d+) tokens to train on are lost", " ".join(report))
    lost_count, of = map(int, lost.groups()) if lost else (0, len(tokens_in))
    assert of == len(tokens_in) == len(tokens_out) + lost_count
    # Which ones: no token twice, none that was not there.
    assert len(set(tokens_out)) == len(tokens_out)
    assert set(tokens_out) <= set(tokens_in)
    assert all(len(row.input_ids) <= context_length for _, row in kept)
    if truncation == "split":
        assert tokens_out == tokens_in
    is_long = any(len(marks) > context_length for marks in rows)
    assert bool(report) == is_long
    assert (len(report) > 1) == (lost_count > 0.05 * of)


@pytest.mark.parametrize("truncation", ["right", "left", "split", "drop", "error"])
def test_the_longest_row_is_the_limit_itself(truncation):
    """D15, M21: nothing happens to rows of exactly that length."""
    token_rows = fit([row(2, 6)] * 5, context_length=8, truncation=truncation)
    assert (len(token_rows), token_rows.lengths.max(), token_rows.report) == (5, 8, [])
