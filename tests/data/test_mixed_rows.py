"""What preview, check and log make of several data sets."""

import logging
from dataclasses import replace

import numpy as np
import pytest

from ftrecipes.data.kinds import ChatRow, TextRow
from ftrecipes.data.preview import preview
from ftrecipes.data.raws import load_raws
from ftrecipes.data.sets import parts_of, row_reader, tokenize_split
from ftrecipes.data.splits import read_splits, report_splits
from tests.data.mixed import TOKENIZER, config, write_rows


@pytest.fixture
def write(tmp_path):
    return lambda name, kind, count: write_rows(tmp_path / name, kind, count)


@pytest.fixture
def told(monkeypatch):
    found = []
    for level in ("info", "warning"):
        monkeypatch.setattr(logging.getLogger("ftrecipes"), level, found.append)
    return found


def test_rows_are_read_again_as_their_set_is_read(write):
    names = [write("a.jsonl", "text", 2), write("b.jsonl", "chat", 3)]
    run = config(names[0], {"name": names[1], "train_on": "last_assistant"})
    [raw] = load_raws(run, TOKENIZER, faults=[]).values()
    rows = tokenize_split(raw, TOKENIZER, data=run.data, context_length=100)
    read_row = row_reader(raw, TOKENIZER, run.data)
    assert [type(read_row(index)) for index in range(len(raw))] == [TextRow] * 2 + [ChatRow] * 3
    assert read_row(1).answer == "text number 1"
    assert [len(raw.rows), raw.rows[4]["messages"][0]["content"]] == [5, "ask 2"]
    parts = list(parts_of(raw, rows, run.data))
    assert [part.sources for _, part, _ in parts] == [rows.sources[:2], rows.sources[2:]]
    assert [data.train_on for _, _, data in parts] == ["assistant", "last_assistant"]
    flat = np.concatenate([part.input_ids for _, part, _ in parts])
    assert np.array_equal(flat, rows.input_ids[:])
    assert parts[1][1].offsets[0] == 0
    assert list(parts_of(raw.parts[0].raw, rows, run.data)) == [(raw.parts[0].raw, rows, run.data)]


def test_what_is_told_of_a_mix(write, told):
    names = [write("a.jsonl", "text", 20), write("b.jsonl", "chat", 2)]
    sets = [{"name": name, "weight": 0.5} for name in names]
    run = config(*sets)
    report_splits(run, read_splits(run, TOKENIZER))
    for line in (
        f"train: {names[0]}: 20 rows, 20 drawn an epoch (1.00 times each): 50.0% asked, 50.0% of",
        f"train: {names[1]}: 2 rows, 20 drawn an epoch (10.00 times each): 50.0% asked, 50.0% of",
        f"train: each row of {names[1]} is trained 10 times an epoch or more",
    ):
        assert any(one.startswith(line) for one in told), told


def test_a_preview_of_a_mix(write):
    """Whose word each token is, where it is drawn first, and what is drawn of each set."""
    names = [write("a.jsonl", "text", 8), write("b.jsonl", "chat", 2)]
    run = config({"name": names[0], "weight": 0.5}, {"name": names[1], "weight": 0.5})
    run = replace(run, train=replace(run.train, context_length=64, batch_size_training=1))
    found = preview(run, TOKENIZER, num_rows=10)
    assert [name for name, _ in found.sets] == names
    assert found.sets[1][1].startswith("2 rows, 8 drawn an epoch (4.00 times each)")
    rows = {row.source: row for row in found.rows}
    assert len(rows) == 10
    text, chat = rows["a.jsonl line 1"], rows["b.jsonl line 2"]
    assert {token.reason for token in text.tokens} <= {"answer", "end of the answer"} | {
        "first position: nothing comes before it"
    }
    assert {"user", "assistant"} <= {token.reason for token in chat.tokens}
    assert chat.number == 10
    assert sum(source == "b.jsonl line 2" for source, _ in chat.place.rows) >= 1
    assert found.totals[0].kept == 10
    assert not any("times an epoch" in notice.text for notice in found.notices)
    often = config({"name": names[0], "weight": 5.0}, {"name": names[1], "weight": 20.0})
    notice = preview(often, TOKENIZER, num_rows=0).notices[0]
    assert notice.text == f"each row of {names[1]} is trained 10 times an epoch or more"
    [one] = preview(run, TOKENIZER, num_rows=1, row="b.jsonl line 1").rows
    assert one.source == "b.jsonl line 1"
    run = config(names[0], {"name": names[1], "train_on": "all"})
    [one] = preview(run, TOKENIZER, num_rows=1, row="b.jsonl line 1").rows
    assert {token.reason for token in one.tokens[1:]} == {"template", "user", "assistant"}


def test_the_check_looks_at_each_set_as_it_is_read(write, tmp_path):
    """A fault of one set is found whatever the others are; what is the tokenizer's is told once."""
    clean, other = write("a.jsonl", "chat", 40), write("b.jsonl", "chat", 3)
    marked = tmp_path / "c.jsonl"
    marked.write_text('{"text": "<|im_start|>user\\nq<|im_end|>"}\n')
    one, two = (
        read_splits(config(*names), TOKENIZER).findings
        for names in ((clean, other), (clean, other, str(marked)))
    )
    assert len({found.code for found in one}) == len(one)
    assert "marks-trained" not in {found.code for found in one}
    [found] = [found for found in two if found.code == "marks-trained"]
    assert found.source == "c.jsonl line 1"
    assert "1 of 1 rows" in found.text
