"""A file has no schema that its first rows could set wrongly."""

import json

import numpy as np

from ftrecipes.config.schema import DataConfig
from ftrecipes.data.files import read_file
from ftrecipes.data.tokenize import tokenize_rows
from tests.tiny_tokenizers import build_tokenizer


def test_a_column_that_is_null_for_long_may_hold_a_text(tmp_path):
    """D04 (b): 20,000 rows with a null, then one with a text in its place."""
    rows = [{"instruction": "a", "input": None, "output": "b"}] * 20_000
    rows.append({"instruction": "a", "input": "x", "output": "b"})
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    raw = read_file(path)
    assert len(raw) == 20_001
    ends = raw.pick([19_999, 20_000], fingerprint=None)
    tokenizer = build_tokenizer("none")
    token_rows = tokenize_rows(ends, tokenizer, data=DataConfig(), context_length=999)
    before, last = (
        tokenizer.decode(ids) for ids in np.split(token_rows.input_ids, token_rows.offsets[1:2])
    )
    assert "### Input:\nx" in last
    assert "### Input" not in before
