"""Training and validation rows together: parts that are cut off, and the faults of both."""

import json
import logging
from dataclasses import replace

import datasets
import pytest

from ftrecipes.config.errors import DataError
from ftrecipes.config.schema import RunConfig, TrainConfig
from ftrecipes.config.sections import DataConfig
from ftrecipes.data.loader import Loader
from ftrecipes.data.raws import cut_fraction
from ftrecipes.data.row_names import number_rows
from ftrecipes.data.rows import RawRows, collect_rows
from ftrecipes.data.splits import read_splits
from tests.tiny_tokenizers import build_tokenizer

TOKENIZER = build_tokenizer("none")


def config(path, *, seed=42, run_validation=True, **data) -> RunConfig:
    train = TrainConfig(dataset=str(path), seed=seed, run_validation=run_validation)
    return RunConfig(train=train, data=DataConfig(**data))


def read(run, tokenizer):
    """The rows of both parts."""
    splits = read_splits(run, tokenizer)
    return splits.rows, splits.val_rows


@pytest.fixture
def write(tmp_path):
    def write_rows(count, *, name="train.jsonl", **more):
        rows = [{"instruction": f"a {n}", "output": "b", **more} for n in range(count)]
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write_rows


def test_a_fraction_is_cut_off_and_the_parts_keep_their_order(write):
    path = write(50)
    rows, val_rows = read(config(path, val_fraction=0.2), TOKENIZER)
    assert (len(rows), len(val_rows)) == (40, 10)
    numbers = [[int(source.split()[-1]) for source in part.sources] for part in (rows, val_rows)]
    assert sorted(numbers[0] + numbers[1]) == list(range(1, 51))
    assert numbers[0] == sorted(numbers[0])
    assert numbers[1] == sorted(numbers[1])
    assert numbers[1] != list(range(1, 11))


def test_the_same_rows_whatever_the_seed_of_the_run_and_whatever_happens_to_the_rows(write):
    """The rows to evaluate on are drawn first of all."""
    path = write(50)
    first = read(config(path, val_fraction=0.1), TOKENIZER)[1].sources
    assert len(first) == 5
    for other in (
        config(path, val_fraction=0.1, seed=7),
        config(path, val_fraction=0.1, truncation="left", on_bad_row="skip"),
        config(path, val_fraction=0.1, cache=False),
    ):
        assert read(other, TOKENIZER)[1].sources == first
    text = path.read_text().splitlines(keepends=True)
    trained = next(n for n in range(1, 51) if f"train.jsonl line {n}" not in first)
    text[trained - 1] = "cut\n"
    path.write_text("".join(text))
    again = read(config(path, val_fraction=0.1, on_bad_row="skip"), TOKENIZER)
    assert again[1].sources == first
    assert len(again[0]) == 44


@pytest.mark.parametrize(("count", "fraction", "expected"), [(100, 0.29, 29), (3, 0.34, 1)])
def test_the_share_is_rounded_down(count, fraction, expected):
    raw = collect_rows([{"x": n} for n in range(count)], name="rows")
    train, validation = cut_fraction(raw, fraction)
    assert (len(train), len(validation)) == (count - expected, expected)


def test_a_share_of_no_row_names_the_sizes(write):
    """D11: 5 % of ten rows."""
    with pytest.raises(DataError, match=r"val_fraction 0.05 of the 10 rows of train.jsonl is not"):
        read(config(write(10), val_fraction=0.05), TOKENIZER)
    assert len(read(config(write(10), val_fraction=0.1), TOKENIZER)[1]) == 1


def test_fewer_validation_rows_than_a_batch_are_all_evaluated(write):
    """D11: three rows and a batch of four; none is dropped."""
    run = config(write(12), val_fraction=0.25)
    _, val_rows = read(run, TOKENIZER)
    loader = Loader(val_rows, strategy="padding", batch_size=4, context_length=64, seed=0)
    assert sorted(row for batch in loader.evaluation_plan() for row in batch) == [0, 1, 2]


def test_rows_set_aside_are_not_trained_on_without_validation_either(write):
    rows, val_rows = read(config(write(10), val_fraction=0.2, run_validation=False), TOKENIZER)
    assert (len(rows), val_rows) == (8, None)


def test_a_fraction_of_a_hub_data_set():
    rows = datasets.Dataset.from_list([{"x": n} for n in range(10)])
    names = number_rows("set", "row", range(1, 11))
    raw = RawRows(rows, ["x"], "set train", names, fingerprint="f")
    train, validation = cut_fraction(raw, 0.3)
    for part in (train, validation):
        assert [f"set row {row['x'] + 1}" for row in part.rows] == list(part.sources)
    assert len({raw.fingerprint, train.fingerprint, validation.fingerprint}) == 3


def test_the_faults_of_both_splits_are_told_together(write):
    train, validation = write(2, output=""), write(3, name="val.jsonl", instruction=None)
    with pytest.raises(DataError) as caught:
        read(config(train, val_file=str(validation)), TOKENIZER)
    assert "2 of 2 rows" in str(caught.value)
    assert "3 of 3 rows" in str(caught.value)


def test_a_fault_of_both_parts_is_told_once(write):
    tokenizer = build_tokenizer("none")
    tokenizer.eos_token = None
    with pytest.raises(DataError) as caught:
        read(config(write(10), val_fraction=0.2), tokenizer)
    assert str(caught.value).count("no end token") == 1


def test_validation_rows_that_are_the_training_rows_are_told(write, monkeypatch):
    told = []
    monkeypatch.setattr(logging.getLogger("ftrecipes"), "warning", told.append)
    path = write(9)
    read(config(path, val_file=str(write(8, name="other.jsonl"))), TOKENIZER)
    read(config(path, val_fraction=0.5), TOKENIZER)
    assert told == []
    read(config(path, val_file=str(write(9, name="copy.jsonl"))), TOKENIZER)
    [line] = told
    assert line.startswith("the validation rows (copy.jsonl) are the training rows")


def test_validation_files_may_be_a_folder(write, tmp_path):
    (tmp_path / "val").mkdir()
    for name in ("val/a.jsonl", "val/b.jsonl"):
        write(2, name=name)
    run = config(write(3))
    run = replace(run, data=replace(run.data, val_file=str(tmp_path / "val")))
    rows, val_rows = read(run, TOKENIZER)
    assert len(rows) == 3
    assert val_rows.sources[1:3] == ["a.jsonl line 2", "b.jsonl line 1"]


def test_the_context_length_of_the_flags_is_that_of_the_rows(tmp_path):
    """M21: a system text of 300 words before a long answer."""
    system = {"role": "system", "content": "the " * 300}
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "fox " * 600}]
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"messages": [system, *turns]}) + "\n")
    train = TrainConfig(dataset=str(path), context_length=512)
    rows, _ = read(RunConfig(train=train), build_tokenizer("chatml"))
    assert rows.lengths.max() == 512
    assert 0 < rows.num_tokens < 512
    train = replace(train, context_length=64)
    with pytest.raises(DataError, match="within --context_length 64"):
        read(RunConfig(train=train), build_tokenizer("chatml"))


def test_new_tokens_that_no_row_holds_are_told(tmp_path):
    tokenizer = build_tokenizer("chatml")
    tokenizer.add_tokens(["<plan>", "<act>"])
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<plan> a"}]
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"messages": turns}) + "\n")
    run = RunConfig(train=TrainConfig(dataset=str(path), new_tokens=["<plan>", "<act>"]))
    [line] = read(run, tokenizer)[0].report
    assert line.startswith("no row holds <act>: the model will not learn")
