"""Prepared rows are those of the run itself, and never those of another."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ftrecipes.config.errors import DataError
from ftrecipes.config.schema import RunConfig, TrainConfig
from ftrecipes.config.sections import DataConfig
from ftrecipes.data.prepared import read_prepared, write_prepared
from ftrecipes.data.preview import preview
from ftrecipes.data.splits import read_splits
from tests.data.dialogs import chat
from tests.tiny_tokenizers import build_tokenizer

TOKENIZER = build_tokenizer("chatml")


def write(path, count, word="a"):
    rows = [chat("q", f"{word} {n}") for n in range(count)] + [chat("q", f"{word} " * 60)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def config(dataset, *, context_length=40, run_validation=True, origins=(), **data):
    train = TrainConfig(
        dataset=dataset, context_length=context_length, run_validation=run_validation
    )
    return RunConfig(train=train, data=DataConfig(**data), origins=dict.fromkeys(origins, "--flag"))


def prepare(run, folder):
    found = read_splits(run, TOKENIZER)
    splits = {"train": found.rows, "validation": found.val_rows}
    splits = {name: rows for name, rows in splits.items() if rows is not None}
    write_prepared(run, TOKENIZER, splits, found.findings, folder=folder)
    return found


def same(rows, other) -> bool:
    arrays = (rows.input_ids, other.input_ids), (rows.labels, other.labels)
    equal = all(np.array_equal(one[:], two[:]) for one, two in arrays)
    words = [(r.sources, r.report, r.intake, r.facts.digest) for r in (rows, other)]
    counts = np.array_equal(rows.token_counts, other.token_counts)
    return equal and counts and words[0] == words[1]


def test_a_run_starts_from_the_same_rows(tmp_path):
    before = prepare(config(write(tmp_path / "a.jsonl", 9), val_fraction=0.2), tmp_path / "rows")
    after = read_splits(config(str(tmp_path / "rows")), TOKENIZER)
    assert same(after.rows, before.rows)
    assert same(after.val_rows, before.val_rows)
    assert isinstance(after.rows.input_ids, np.memmap)
    assert after.findings == before.findings != []
    # The rows that they were made of may go.
    (tmp_path / "a.jsonl").unlink()
    without = read_splits(config(str(tmp_path / "rows"), run_validation=False), TOKENIZER)
    assert without.val_rows is None


def test_a_mix_keeps_its_sets_and_weights(tmp_path):
    names = [write(tmp_path / "a.jsonl", 9), write(tmp_path / "b.jsonl", 4, "b")]
    mix = [{"name": name, "weight": weight} for name, weight in zip(names, (0.7, 0.3), strict=True)]
    before = prepare(config(mix), tmp_path / "rows")
    after = read_splits(config(str(tmp_path / "rows")), TOKENIZER)
    assert same(after.rows, before.rows)
    told = [
        [(s.name, s.num_rows, s.weight, s.intake) for s in f.rows.sets] for f in (before, after)
    ]
    assert told[0] == told[1]
    assert [weight for _, _, weight, _ in told[0]] == [0.7, 0.3]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"context_length": 41}, "--context_length: 40 there, 41 here"),
        ({"train_on": "all"}, "--data.train_on: assistant there, all here"),
        ({"truncation": "left"}, "--data.truncation: right there, left here"),
        ({"on_bad_row": "skip"}, "--data.on_bad_row: error there, skip here"),
        (
            {"val_fraction": 0.5, "origins": ["data.val_fraction"]},
            "--data.val_fraction: 0.2 there, 0.5 here",
        ),
    ],
)
def test_other_options_are_refused_by_name(tmp_path, change, named):
    prepare(config(write(tmp_path / "a.jsonl", 9), val_fraction=0.2), tmp_path / "rows")
    with pytest.raises(DataError) as caught:
        read_splits(config(str(tmp_path / "rows"), **change), TOKENIZER)
    assert [line.strip() for line in str(caught.value).splitlines() if "there, " in line] == [named]


def test_another_tokenizer_is_refused_by_what_differs(tmp_path):
    prepare(config(write(tmp_path / "a.jsonl", 9)), tmp_path / "rows")
    run = config(str(tmp_path / "rows"))
    other = build_tokenizer("chatml")
    other.chat_template += " "
    with pytest.raises(DataError, match="\n  tokenizer: another chat template\n  do: "):
        read_splits(run, other)
    other = build_tokenizer("chatml")
    other.add_tokens(["<new>"])
    with pytest.raises(DataError, match="\n  tokenizer: another vocabulary\n"):
        read_splits(run, other)


@pytest.mark.parametrize("harm", ["no rows", "cut rows", "changed rows", "no words", "cut words"])
def test_a_damaged_folder_is_refused(tmp_path, harm):
    prepare(config(write(tmp_path / "a.jsonl", 9)), tmp_path / "rows")
    file = tmp_path / "rows" / ("prepared.json" if "words" in harm else "train-0.rows")
    content = bytearray(file.read_bytes())
    if "changed" in harm:
        content[len(content) // 2] ^= 1
    file.write_bytes(content[:-9] if "cut" in harm else content)
    if "no" in harm.split():
        file.unlink()
    with pytest.raises(DataError, match="not a whole folder of prepared rows"):
        read_prepared(config(str(tmp_path / "rows")), TOKENIZER)


def test_prepared_again_in_place_of_the_earlier(tmp_path):
    run = config(write(tmp_path / "a.jsonl", 9))
    folder = tmp_path / "deep" / "rows"
    prepare(run, folder)
    other = replace(run, train=replace(run.train, context_length=50))
    before = prepare(other, folder)
    after = read_splits(config(str(folder), context_length=50), TOKENIZER)
    assert same(after.rows, before.rows)
    assert [path.name for path in folder.parent.iterdir()] == ["rows"]
    [mode] = {path.stat().st_mode for path in folder.iterdir()}
    assert mode == (tmp_path / "a.jsonl").stat().st_mode
    assert json.loads((folder / "prepared.json").read_text())["dataset"] == run.train.dataset


def test_a_preview_asks_for_what_was_read(tmp_path):
    prepare(config(write(tmp_path / "a.jsonl", 9)), tmp_path / "rows")
    with pytest.raises(DataError, match="name the data set that they were made of"):
        preview(config(str(tmp_path / "rows")), TOKENIZER, num_rows=1)
