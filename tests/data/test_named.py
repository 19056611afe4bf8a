"""The named data sets of llama-recipes on five-row look-alikes: prompts, masks, lost rows."""

import csv
import json
from types import SimpleNamespace

import datasets
import pytest

from ftrecipes.config.errors import DataError
from ftrecipes.config.schema import RunConfig, TrainConfig
from ftrecipes.config.sections import DataConfig
from ftrecipes.data import sources
from ftrecipes.data.facts import IGNORED
from ftrecipes.data.row_names import number_rows
from ftrecipes.data.splits import read_splits
from tests.data.dialogs import rows_of
from tests.tiny_tokenizers import build_tokenizer

TASK = "Below is an instruction that describes a task"
ASK = "Write a response that appropriately completes the request."
ALPACA = [
    {"instruction": f"Add {n}.", "input": "" if n % 2 else f"{n} and {n}", "output": f"It is {n}."}
    for n in range(5)
]
GRAMMAR = [(f'he have {n} "big" cat', f"He has {n} cats, all big.") for n in range(5)]
SAMSUM = [
    {"id": str(n), "dialogue": f"Ann: Hi {n}\r\nBob: Hello", "summary": f"Ann and Bob talk, {n}."}
    for n in range(5)
]


def alpaca_text(row: dict) -> tuple[str, str]:
    """As the predecessor wrote it."""
    if row["input"]:
        head = f"{TASK}, paired with an input that provides further context. {ASK}\n\n"
        told = f"### Instruction:\n{row['instruction']}\n\n### Input:\n{row['input']}\n\n"
    else:
        head, told = f"{TASK}. {ASK}\n\n", f"### Instruction:\n{row['instruction']}\n\n"
    return f"{head}{told}### Response:", row["output"]


def grammar_text(row: tuple[str, str]) -> tuple[str, str]:
    return f"Correct this to standard English: {row[0]}\n---\nCorrected: ", row[1]


def samsum_text(row: dict) -> tuple[str, str]:
    return f"Summarize this dialog:\n{row['dialogue']}\n---\nSummary:\n", row["summary"]


def read(dataset, tokenizer, **data):
    config = RunConfig(train=TrainConfig(dataset=dataset), data=DataConfig(**data))
    splits = read_splits(config, tokenizer)
    return splits.rows, splits.val_rows


@pytest.fixture
def alpaca_file(tmp_path):
    path = tmp_path / "alpaca_data.json"
    path.write_text(json.dumps(ALPACA, indent=2))
    return str(path)


@pytest.fixture
def grammar_file(tmp_path):
    path = tmp_path / "gtrain_10k.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("input", "target"), *GRAMMAR])
    return str(path)


@pytest.fixture
def samsum_hub(monkeypatch):
    """Stands for the hub: its rows, and what it was asked for."""
    hub = SimpleNamespace(rows=SAMSUM, asked=[])

    def load_hub(name, split):
        hub.asked.append((name, split))
        rows = datasets.Dataset.from_list(hub.rows)
        found = number_rows(name, "row", range(1, 6))
        return sources.RawRows(rows, rows.column_names, name, found)

    monkeypatch.setattr(sources, "load_hub", load_hub)
    return hub


def check_rows(token_rows, expected, tokenizer):
    """BOS, prompt, answer, EOS, whatever template there is; the last two are trained."""
    assert len(token_rows) == len(expected) == 5
    for (ids, labels), (prompt, answer) in zip(rows_of(token_rows), expected, strict=True):
        text_ids = tokenizer(prompt + answer, add_special_tokens=False)["input_ids"]
        assert ids == [tokenizer.bos_token_id, *text_ids, tokenizer.eos_token_id]
        trained = [label for label in labels if label != IGNORED]
        assert labels == [IGNORED] * (len(labels) - len(trained)) + trained
        assert ids[-len(trained) :] == trained
        # The blank at the end of a prompt may be in the first token of the answer.
        assert tokenizer.decode(trained[:-1]).lstrip() == answer
        assert trained[-1] == tokenizer.eos_token_id


@pytest.mark.parametrize("family", ["none", "llama3", "mistral"])
def test_alpaca(alpaca_file, family):
    tokenizer = build_tokenizer(family, add_bos=True)
    rows, val_rows = read("alpaca_dataset", tokenizer, train_file=alpaca_file)
    check_rows(rows, [alpaca_text(row) for row in ALPACA], tokenizer)
    assert val_rows is None


@pytest.mark.parametrize("family", ["none", "llama3", "mistral"])
def test_grammar(grammar_file, family):
    tokenizer = build_tokenizer(family, add_bos=True)
    both = {"train_file": grammar_file, "val_file": grammar_file}
    for token_rows in read("grammar_dataset", tokenizer, **both):
        check_rows(token_rows, [grammar_text(row) for row in GRAMMAR], tokenizer)


@pytest.mark.parametrize("family", ["none", "llama3", "mistral"])
def test_samsum(samsum_hub, family):
    tokenizer = build_tokenizer(family, add_bos=True)
    for token_rows in read("samsum_dataset", tokenizer):
        check_rows(token_rows, [samsum_text(row) for row in SAMSUM], tokenizer)
    assert samsum_hub.asked == [("knkarthick/samsum", "train"), ("knkarthick/samsum", None)]


def test_splits_and_validation_files_of_samsum(samsum_hub, tmp_path):
    (tmp_path / "val.json").write_text(json.dumps(SAMSUM[:2]))
    read("samsum_dataset", build_tokenizer("none"), train_split="test", val_split="train")
    assert [split for _, split in samsum_hub.asked] == ["test", "train"]
    _, val_rows = read(
        "samsum_dataset", build_tokenizer("none"), val_file=str(tmp_path / "val.json")
    )
    assert len(val_rows) == 2


def test_samsum_rows_without_a_dialog_are_left_out(samsum_hub):
    """Nobody can correct them on the hub, so that an error would be the end of it."""
    samsum_hub.rows = [SAMSUM[0] | {"dialogue": text} for text in (None, "", "a", "b", "c")]
    rows, _ = read("samsum_dataset", build_tokenizer("none"))
    assert rows.sources == [f"knkarthick/samsum row {number}" for number in (3, 4, 5)]


def test_a_faulty_row_is_named_with_the_sets_own_key(alpaca_file, grammar_file, tmp_path):
    tokenizer = build_tokenizer("none")
    (tmp_path / "other.csv").write_text("input,output\na,b\n")
    with pytest.raises(DataError, match=r"other\.csv line 2: key 'target' is missing"):
        read("grammar_dataset", tokenizer, train_file=str(tmp_path / "other.csv"))
    (tmp_path / "empty.csv").write_text("input,target\na,\nb,c\n")
    with pytest.raises(DataError, match=r"empty\.csv line 2: key 'target' is empty"):
        read("grammar_dataset", tokenizer, train_file=str(tmp_path / "empty.csv"))
    with pytest.raises(
        DataError, match=r"gtrain_10k\.csv line 2, .*: key 'instruction' is missing"
    ):
        read("alpaca_dataset", tokenizer, train_file=grammar_file)


def test_a_tokenizer_without_an_end_token(alpaca_file):
    tokenizer = build_tokenizer("none")
    tokenizer.eos_token = None
    with pytest.raises(DataError, match="no end token"):
        read("alpaca_dataset", tokenizer, train_file=alpaca_file)


def test_five_percent_of_alpaca(alpaca_file, tmp_path):
    """The predecessor's share, drawn instead of taken from the top."""
    path = tmp_path / "more.json"
    path.write_text(json.dumps(ALPACA * 20))
    rows, val_rows = read(
        "alpaca_dataset", build_tokenizer("none"), train_file=str(path), val_fraction=0.05
    )
    assert (len(rows), len(val_rows)) == (95, 5)
