"""Several data sets read, tokenised and joined; what each has for itself."""

import json
import logging

import datasets
import numpy as np
import pytest

from ftrecipes.config.errors import DataError
from ftrecipes.config.schema import RunConfig, TrainConfig
from ftrecipes.config.sections import DataConfig
from ftrecipes.data.facts import IGNORED
from ftrecipes.data.rows import collect_rows
from ftrecipes.data.sets import cap_rows
from ftrecipes.data.splits import read_splits
from tests.data.mixed import FORMATS, TOKENIZER, config, write_rows


@pytest.fixture
def write(tmp_path):
    return lambda name, kind, count: write_rows(tmp_path / name, kind, count)


@pytest.fixture
def told(monkeypatch):
    found = []
    for level in ("info", "warning"):
        monkeypatch.setattr(logging.getLogger("ftrecipes"), level, found.append)
    return found


def read(*sets, **settings):
    return read_splits(config(*sets, **settings), TOKENIZER)


def test_sets_of_any_format_one_behind_another(write):
    names = [write(f"{kind}.jsonl", kind, 3) for kind in FORMATS]
    rows = read(*names).rows
    assert rows.sources == [f"{kind}.jsonl line {n}" for kind in FORMATS for n in (1, 2, 3)]
    assert [(one.name, one.num_rows) for one in rows.sets] == [(name, 3) for name in names]
    start = 0
    for name in names:
        alone = read_splits(RunConfig(train=TrainConfig(dataset=name)), TOKENIZER).rows
        end = start + len(alone)
        part = slice(rows.offsets[start], rows.offsets[end])
        assert np.array_equal(rows.input_ids[part], alone.input_ids)
        assert np.array_equal(rows.labels[part], alone.labels)
        assert np.array_equal(rows.offsets[start : end + 1] - part.start, alone.offsets)
        start = end
    assert rows.intake.num_read == 9
    assert rows.intake.num_tokens == rows.num_tokens


def test_what_a_set_has_for_itself(write):
    chat, other = write("a.jsonl", "chat", 2), write("b.jsonl", "chat", 2)
    columns = {"name": write("c.jsonl", "body", 2), "columns": {"text": "body"}}
    rows = read({"name": chat, "train_on": "last_assistant"}, other, columns).rows
    trained = [
        TOKENIZER.decode([label for label in rows.labels[slice(*bounds)] if label != IGNORED])
        for bounds in zip(rows.offsets, rows.offsets[1:], strict=False)
    ]
    assert trained[0] == "last 0<|im_end|>"
    assert trained[2] == "first 0<|im_end|>last 0<|im_end|>"
    assert trained[4].startswith("text number 0")


def test_a_cap_takes_the_same_rows_each_time_and_keeps_their_order():
    raw = collect_rows([{"x": n} for n in range(50)], name="rows")
    capped = cap_rows(raw, 10)
    numbers = [row["x"] for row in capped.rows]
    assert numbers == sorted(numbers)
    assert numbers != list(range(10))
    assert len(numbers) == 10
    assert cap_rows(raw, 10).sources == capped.sources
    assert {row["x"] for row in cap_rows(raw, 5).rows} < set(numbers)
    assert cap_rows(raw, 50) is cap_rows(raw, None) is raw


def test_a_cap_of_a_set_changes_what_is_kept_in_the_cache(write):
    name = write("a.jsonl", "text", 20)
    for cap in (5, 7, 20):
        assert len(read({"name": name, "max_rows": cap}).rows) == cap
    hub = datasets.Dataset.from_list([{"x": n} for n in range(9)])
    raw = collect_rows(hub, name="rows")
    assert len(cap_rows(raw, 4)) == 4


def test_rows_are_told_apart_where_files_have_one_name(write, tmp_path):
    first, second = write("x/rows.jsonl", "text", 2), write("y/rows.jsonl", "chat", 2)
    third = write("z.jsonl", "text", 1)
    rows = read(first, second, third).rows
    assert rows.sources[1:4] == [f"{first} line 2", f"{second} line 1", f"{second} line 2"]
    assert rows.sources[4] == "z.jsonl line 1"
    write("f/rows.jsonl", "text", 1)
    write("f/more.jsonl", "text", 1)
    rows = read(str(tmp_path / "f"), first).rows
    assert rows.sources[:2] == [
        f"{tmp_path}/f/more.jsonl line 1",
        f"{tmp_path}/f/rows.jsonl line 1",
    ]


def test_a_fraction_of_each_set(write, told):
    names = [
        write("a.jsonl", "text", 20),
        write("b.jsonl", "chat", 10),
        write("c.jsonl", "text", 3),
    ]
    splits = read(*names, val_fraction=0.2)
    assert [one.num_rows for one in splits.rows.sets] == [16, 8, 3]
    assert [one.num_rows for one in splits.val_rows.sets] == [4, 2]
    assert not set(splits.rows.sources) & set(splits.val_rows.sources)
    assert f"there are no rows to evaluate on of {names[2]}" in told
    alone = read_splits(
        RunConfig(train=TrainConfig(dataset=names[0]), data=DataConfig(val_fraction=0.2)),
        TOKENIZER,
    )
    assert splits.val_rows.sources[:4] == alone.val_rows.sources
    assert read(*names, val_fraction=0.2, run_validation=False).val_rows is None
    with pytest.raises(DataError, match=r"val_fraction 0.01 is not one row of any data set"):
        read(*names, val_fraction=0.01)


def test_a_cap_comes_before_the_fraction(write):
    name = write("a.jsonl", "text", 50)
    splits = read({"name": name, "max_rows": 20}, val_fraction=0.1)
    assert (len(splits.rows), len(splits.val_rows)) == (18, 2)


def test_each_set_has_its_own_validation_rows(write, told):
    a, b = write("a.jsonl", "text", 4), write("b.jsonl", "chat", 4)
    own, common = write("val.jsonl", "chat", 2), write("common.jsonl", "text", 3)
    splits = read(a, {"name": b, "val_file": own})
    assert splits.val_rows.sources == ["val.jsonl line 1", "val.jsonl line 2"]
    assert f"there are no rows to evaluate on of {a}" in told
    splits = read(a, b, val_file=common)
    assert splits.val_rows.sources == [f"common.jsonl line {n}" for n in (1, 2, 3)]
    assert splits.val_rows.sets == ()
    read(a, b, val_file=b)
    assert any("the validation rows (b.jsonl) are the training rows" in line for line in told)
    assert read(a, b).val_rows is None


def test_named_sets_and_a_function_in_a_mix(write, tmp_path):
    code = tmp_path / "mine.py"
    code.write_text(
        "def get_custom_dataset(settings, tokenizer, split):\n"
        "    return [{'text': f'{split} {n}'} for n in range(3)]\n"
    )
    alpaca = write("alpaca.json", "alpaca", 2)
    splits = read(
        {"name": "alpaca_dataset", "train_file": alpaca, "weight": 1.0},
        {"name": "custom_dataset", "weight": 2.0},
        custom=str(code),
    )
    assert splits.rows.sources[2] == "mine.py train row 1"
    assert "### Instruction" in TOKENIZER.decode(splits.rows.input_ids[: splits.rows.offsets[1]])
    assert [source.partition(" row")[0] for source in splits.val_rows.sources] == (
        ["mine.py validation"] * 3
    )


def test_a_hub_set_in_a_mix(write, monkeypatch):
    made = {
        ("o/d", "dev"): datasets.Dataset.from_list([{"text": f"hub {n}"} for n in range(3)]),
        ("o/d", "validation"): datasets.Dataset.from_list([{"text": "hub val"}]),
    }
    monkeypatch.setattr(datasets, "load_dataset", lambda name, split: made[name, split])
    monkeypatch.setattr(datasets, "get_dataset_split_names", lambda name: ["dev", "validation"])
    name = write("a.jsonl", "chat", 2)
    splits = read({"name": "o/d", "train_split": "dev", "max_rows": 2}, name)
    assert splits.rows.sources[-2:] == ["a.jsonl line 1", "a.jsonl line 2"]
    assert splits.rows.sources[0].startswith("o/d dev row")
    assert splits.val_rows.sources == ["o/d validation row 1"]
    both = [{"name": "o/d", "train_split": split} for split in ("dev", "validation")]
    splits = read(*both)
    assert [one.name for one in splits.rows.sets] == ["o/d dev", "o/d validation"]
    assert splits.rows.sources[3:] == splits.val_rows.sources == ["o/d validation row 1"]


def test_the_faults_of_all_sets_are_told_together(write, tmp_path):
    good = write("a.jsonl", "text", 2)
    for name, row in (("b.jsonl", {"text": None}), ("c.jsonl", {"unknown": "x"})):
        (tmp_path / name).write_text(json.dumps(row) + "\n")
    (tmp_path / "d.jsonl").write_bytes(b"\xff\xff\n")
    names = [str(tmp_path / f"{letter}.jsonl") for letter in "bcd"]
    with pytest.raises(DataError) as caught:
        read(good, *names)
    for part in (
        "b.jsonl line 1: key 'text'",
        "no known format (c.jsonl line 1)",
        "d.jsonl line 1: ",
    ):
        assert part in str(caught.value)
