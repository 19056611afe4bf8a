"""Rows longer than the context, and rows without anything to train on."""

import pytest

from ftrecipes.config.errors import DataError
from ftrecipes.data.facts import IGNORED
from tests.data.dialogs import chat, tokenize
from tests.tiny_tokenizers import build_tokenizer


class TestTooLong:
    """Rows of 3 prompt and 7 answer positions, and one of 3 and 17."""

    TOKENIZER = build_tokenizer("none")

    def rows(self):
        def row(answer):
            return {"input_ids": [9, 9, 9, *answer], "labels": [IGNORED] * 3 + answer}

        return [row([5] * 7), row([5] * 17), row([5] * 7)]

    def test_cut_at_the_right(self):
        token_rows = tokenize(self.rows(), self.TOKENIZER, context_length=12)
        assert token_rows.lengths.tolist() == [10, 12, 10]
        assert token_rows.num_tokens == 7 + 9 + 7
        assert token_rows.report == [
            "1 of 3 rows are longer than 12 positions and were cut at the right: 8 of 40 "
            "positions and 8 of 31 tokens to train on are lost",
            "26% of the tokens to train on are lost to their length: raise --context_length, or "
            "choose another --data.truncation (right, left, split, drop, error)",
        ]

    def test_a_small_loss_is_told_without_advice(self):
        """1 of 31 is below 5 %."""
        token_rows = tokenize(self.rows(), self.TOKENIZER, context_length=19)
        assert len(token_rows.report) == 1
        assert "1 of 31 tokens" in token_rows.report[0]

    def test_dropped(self):
        token_rows = tokenize(self.rows(), self.TOKENIZER, context_length=12, truncation="drop")
        assert token_rows.lengths.tolist() == [10, 10]
        assert token_rows.sources == ["test rows row 1", "test rows row 3"]
        assert "dropped: 20 of 40 positions and 17 of 31 tokens" in token_rows.report[0]

    def test_an_error(self):
        with pytest.raises(DataError, match=r"1 of 3 rows(.|\n)*row 2: 20 positions"):
            tokenize(self.rows(), self.TOKENIZER, context_length=12, truncation="error")


def test_rows_without_a_trained_token_are_counted_and_reported():
    """M14, M16: the prompt alone fills the context of one row."""
    tokenizer = build_tokenizer("chatml")
    rows = [chat("Hi", "Hello"), chat("word " * 300, "Hello"), chat("Hi", "Hello")]
    token_rows = tokenize(rows, tokenizer, context_length=64)
    assert len(token_rows) == 3
    assert token_rows.token_counts.tolist()[1] == 0
    assert (
        "1 of 3 rows have no token to train on and are passed over: test rows row 2"
        in (token_rows.report[-1])
    )


@pytest.mark.parametrize("truncation", ["right", "drop"])
def test_a_set_without_any_trained_token_names_the_flag(truncation):
    """M14, M21: 64 rows of a long prompt and a short answer."""
    rows = [chat("word " * 40, "yes")] * 64
    with pytest.raises(DataError) as caught:
        tokenize(rows, build_tokenizer("chatml"), context_length=16, truncation=truncation)
    assert "None of 64 rows" in str(caught.value)
    assert "--context_length 16" in str(caught.value)


def test_one_position_is_nothing_to_train_on():
    """The first position of a row has no predecessor that could produce it."""
    with pytest.raises(DataError, match="None of 1 rows"):
        tokenize([{"input_ids": [5], "labels": [5]}], build_tokenizer("none"))
