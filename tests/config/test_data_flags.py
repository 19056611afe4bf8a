"""The flags that say where rows come from: files, folders, globs, named sets, validation parts."""

import json
import os
import re
from pathlib import Path

import pytest

from ftrecipes.config import argv
from ftrecipes.config.data_files import find_data_files
from ftrecipes.config.parse import parse
from tests.config.faults import faults_of

ALPACA = "--dataset alpaca_dataset --data.train_file rows.json"


@pytest.fixture
def flags_of(needed):
    """Flags of a run in a folder with some data files."""
    for name in ("packed/a.JSONL.GZ", "packed/b.txt.zst"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    for name in ("rows.json", "notes.md", "set/b.jsonl", "set/a.csv", "set/.a.jsonl", "set/x.py"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("[]")
    for name in ("parts/train.jsonl", "parts/validation.jsonl", "parts/2_test.csv", "empty/x.md"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("[]")

    def make(words: str) -> dict:
        return argv.split(needed, ()).flags | argv.split(words.split(), ()).flags

    return make


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("rows.json", ["rows.json"]),
        ("set", ["set/a.csv", "set/b.jsonl"]),
        ("set/", ["set/a.csv", "set/b.jsonl"]),
        ("set/*", ["set/a.csv", "set/b.jsonl"]),
        ("**/*.json*", ["parts/train.jsonl", "parts/validation.jsonl", "rows.json", "set/b.jsonl",
                        "train.jsonl"]),
        ("set/[!a].jsonl", ["set/b.jsonl"]),
        ("*.md", []),
        ("empty", []),
        ("none", []),
    ],
)  # fmt: skip
def test_files_that_a_setting_names(flags_of, value, names):
    assert [str(path) for path in find_data_files(value)] == names


def test_a_file_is_not_taken_for_a_glob(flags_of):
    Path("rows[1].json").write_text("[]")
    Path("rows1.json").write_text("[]")
    assert find_data_files("rows[1].json") == [Path("rows[1].json")]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--dataset data/*.jsonl", "--dataset data/*.jsonl: matches no data file"),
        ("--dataset *.md", "--dataset *.md: matches no data file"),
        ("--dataset rows.md.gz", "rows.md.gz: not a kind of file that is read\n  got: .md.gz"),
        ("--dataset rows.parquet.gz", "(all but .parquet also packed: .gz or .zst behind)"),
        ("--dataset empty", "--dataset empty: this folder holds no data files\n  expected: files"),
        ("--data.val_file none/*.csv", "--data.val_file none/*.csv: matches no data file"),
        ("--data.val_file empty", "--data.val_file empty: this folder holds no data files"),
        ("--dataset parts", "got: 2_test.csv (test), train.jsonl (train), validation.jsonl"),
        ("--dataset alpaca_dataset", "--dataset alpaca_dataset: needs --data.train_file"),
        ("--dataset grammar_dataset", "--dataset grammar_dataset: needs --data.train_file"),
        (
            "--dataset alpaca_dataset --data.train_file row.json",
            "--data.train_file row.json: does not exist",
        ),
        ("--data.train_file rows.json", "--data.train_file: would have no effect"),
        (f"{ALPACA} --data.train_split x", "rows of alpaca_dataset have no splits"),
        (f"{ALPACA} --data.format chat", "--data.format: would have no effect"),
        (f"{ALPACA} --data.columns output=answer", "--data.columns: would have no effect"),
        (
            "--data.columns instruction=a,output=a",
            "--data.columns: one column in 2 places\n  got: a as instruction, output",
        ),
        (
            "--data.train_on user",
            "--data.train_on: bad value\n  got: user\n  expected: one of assistant, last_ass",
        ),
        ("--data.train_on completions", "--data.train_on: bad value\n  got: completions"),
        (
            "--data.train_on completion --data.format sharegpt",
            "--data.train_on completion contradicts --data.format sharegpt: such rows have none\n"
            "  expected: assistant, last_assistant or all",
        ),
        (
            "--data.train_on completion --data.format text",
            "--data.train_on: would have no effect: all of a text is trained",
        ),
        (
            "--data.train_on all --data.format tokens",
            "--data.train_on: would have no effect: labels say what of tokens is trained",
        ),
        (
            "--data.train_on assistant --data.format text",
            "--data.train_on: would have no effect: all of a text is trained",
        ),
        ("--data.val_fraction 1", "--data.val_fraction: out of range"),
        ("--data.val_fraction -0.1", "--data.val_fraction: out of range"),
        (
            "--data.val_fraction 0.1 --data.val_file rows.json",
            "--data.val_fraction contradicts --data.val_file",
        ),
        (
            "--dataset o/d --data.val_fraction 0.1 --data.val_split dev",
            "--data.val_fraction contradicts --data.val_split",
        ),
        (
            "--dataset custom_dataset --custom_dataset.file x.py --data.val_fraction 0.1",
            "--data.val_fraction: would have no effect: the custom data set makes both splits",
        ),
        ("--dataset set --output_dir set", "--output_dir set: this is the folder of --dataset"),
    ],
)
def test_faults(flags_of, words, expected):
    for name in ("x.py", "rows.md.gz", "rows.parquet.gz"):
        Path(name).touch()
    (fault,) = faults_of(lambda: parse(flags_of(words)))
    assert expected in fault


def test_what_exists_and_is_no_file(flags_of):
    """A pipe can not be read twice."""
    Path("gone.jsonl").symlink_to("nowhere")
    os.mkfifo("pipe.jsonl")
    for name, expected in (
        ("gone.jsonl", "does not exist.*mend the link: it leads to nowhere"),
        ("pipe.jsonl", "neither a file nor a folder.*write the rows to a file"),
    ):
        (fault,) = faults_of(lambda name=name: parse(flags_of(f"--dataset {name}")))
        assert re.search(f"--dataset {name}: {expected}", fault.replace("\n", " "))


@pytest.mark.parametrize(
    "words",
    [
        "--dataset set",
        "--dataset set/*.jsonl --data.val_file parts/validation.*",
        "--dataset parts/*",
        "--data.train_on last_assistant",
        "--data.train_on all --data.format text",
        "--data.train_on completion",
        "--data.train_on completion --data.format prompt_completion",
        f"{ALPACA} --data.train_on completion",
        "--data.train_on assistant --data.format chat",
        "--dataset set/b.jsonl --output_dir set",
        "--dataset packed --data.val_file packed/*.zst",
        "--dataset samsum_dataset --data.val_split test",
        f"{ALPACA} --data.val_fraction 0.05",
        "--dataset grammar_dataset --data.train_file set/a.csv --data.val_file rows.json",
        "--dataset o/d --data.val_fraction 0.1 --data.train_split train",
    ],
)
def test_what_is_allowed(flags_of, words):
    assert parse(flags_of(words)).warnings == ()


@pytest.mark.parametrize("value", ["out/run.json", "out/*.json", "*/run.json"])
def test_a_run_never_replaces_its_own_input(flags_of, value):
    """Not with --overwrite_output_dir either."""
    Path("out").mkdir()
    Path("out/run.json").write_text(json.dumps([{"instruction": "a", "output": "b"}]))
    words = f"--dataset {value} --output_dir out --overwrite_output_dir"
    (fault,) = faults_of(lambda: parse(flags_of(words)))
    assert "would replace out/run.json, which is --dataset" in fault
