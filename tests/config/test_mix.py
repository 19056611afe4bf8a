"""`--dataset` with several sets: what is read, what is refused, and that all of it is told."""

import json
from pathlib import Path

import pytest
import yaml

from ftrecipes.config import argv
from ftrecipes.config.dataset_text import read_dataset
from ftrecipes.config.mixing import config_of, dataset_words, sets_of
from ftrecipes.config.parse import parse, to_mapping
from ftrecipes.config.schema import RunConfig, TrainConfig
from tests.config.faults import faults_of

WEIGHTED = [{"name": "a.jsonl", "weight": 0.7}, {"name": "b.jsonl", "weight": 0.3}]


@pytest.fixture
def flags_of(needed):
    """Flags of a run in a folder with some data files."""
    names = ("a.jsonl", "b.jsonl", "a,b.jsonl", "c:5", "set/a.jsonl", "set/b.jsonl", "mine.py")
    for name in names:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("{}\n")
    base = argv.split(needed, ()).flags

    def make(dataset, words="") -> dict:
        return base | {"dataset": dataset} | argv.split(words.split(), ()).flags

    return make


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a.jsonl", "a.jsonl"),
        ("", ""),
        ("a.jsonl:0.7,b.jsonl:0.3", WEIGHTED),
        (" a.jsonl:0.7 , b.jsonl:.3 ", WEIGHTED),
        ("a.jsonl,b.jsonl", [{"name": "a.jsonl"}, {"name": "b.jsonl"}]),
        ("[a.jsonl:0.7,b.jsonl:0.3]", WEIGHTED),
        (["a.jsonl:0.7", "b.jsonl:0.3"], WEIGHTED),
        (json.dumps(WEIGHTED), WEIGHTED),
        ([{"path": "a.jsonl", "weight": "0.7"}, {"name": "b.jsonl", "weight": 0.3}], WEIGHTED),
        (["a.jsonl"], "a.jsonl"),
        (Path("a.jsonl"), "a.jsonl"),
        ({"path": "a.jsonl", "max_rows": 5}, [{"name": "a.jsonl", "max_rows": 5}]),
        ("owner/name:2,b.jsonl:1", [{"name": "owner/name", "weight": 2.0},
                                    {"name": "b.jsonl", "weight": 1.0}]),
        ("set/*.jsonl:1,b.jsonl:2", [{"name": "set/*.jsonl", "weight": 1.0},
                                     {"name": "b.jsonl", "weight": 2.0}]),
        # What is there under its whole name is that.
        ("a,b.jsonl", "a,b.jsonl"),
        ("a,b.jsonl:3,b.jsonl:1", [{"name": "a,b.jsonl", "weight": 3.0},
                                   {"name": "b.jsonl", "weight": 1.0}]),
        ("c:5", "c:5"),
        # A colon in a URL, in a path of Windows and before a suffix is none of a weight.
        ("C:\\rows\\a.jsonl", "C:\\rows\\a.jsonl"),
        ("C:/rows/a.jsonl:2,b.jsonl:1", [{"name": "C:/rows/a.jsonl", "weight": 2.0},
                                         {"name": "b.jsonl", "weight": 1.0}]),
        ("s3://bucket/a.jsonl:2,hf://b.csv:1", [{"name": "s3://bucket/a.jsonl", "weight": 2.0},
                                                {"name": "hf://b.csv", "weight": 1.0}]),
        ("https://h:80/a.jsonl?key=1,2:3", "https://h:80/a.jsonl?key=1,2:3"),
        ("none:1.jsonl", "none:1.jsonl"),
        ([{"path": "~/a", "split": "dev", "columns": "output=answer", "train-on": "all"}],
         [{"name": str(Path("~/a").expanduser()), "train_split": "dev",
           "columns": {"output": "answer"}, "train_on": "all"}]),
    ],
)  # fmt: skip
def test_what_is_read(flags_of, value, expected):
    assert read_dataset(value) == (expected, [])


@pytest.mark.parametrize(
    ("value", "words", "expected"),
    [
        ("a.jsonl:x,b.jsonl:1", "", ["--dataset: a.jsonl: weight can not be read\n  got: x"]),
        ("a.jsonl:,b.jsonl:1", "", ["--dataset: a.jsonl: weight can not be read\n  got: \"\""]),
        ("o/d:train,b.jsonl:1", "", ["do: if a part of a hub data set is meant"]),
        ("a.jsonl:nan,b.jsonl:1", "", ["do: the number must be finite"]),
        ("a.jsonl:0,b.jsonl:-2", "", ["weight of a.jsonl: out of range\n  got: 0\n  expected: more",
                                      "weight of b.jsonl: out of range\n  got: -2"]),
        ("a.jsonl:1,b.jsonl", "", ["some sets have a weight and some have none\n  got: none: b"]),
        ("a.jsonl:1", "", ["the weight of a.jsonl would have no effect: it is the only set"]),
        ("a.jsonl,,b.jsonl", "", ["--dataset: the name of a set is empty"]),
        ("a.jsonl:1,./a.jsonl:1", "", ["a.jsonl and ./a.jsonl have rows in common"]),
        ("o/d:1,o/d:1", "", ["--dataset: o/d is given twice\n  got: o/d, split train"]),
        ("set:1,set/a.jsonl:1", "", ["set and set/a.jsonl have rows in common\n  got: "]),
        ("a.jsonl,c.jsonl", "", ["--dataset c.jsonl: does not exist"]),
        ("a.jsonl,*.csv", "", ["--dataset *.csv: matches no data file"]),
        ("a.jsonl;b.jsonl", "", ["--dataset a.jsonl;b.jsonl: does not exist"]),
        ('{"path": "a"', "", ["--dataset: no valid JSON"]),
        ([{"weight": 1}, 5], "", ["--dataset: set 1 has no name", "--dataset: bad value\n  got: "]),
        ([{"path": "a.jsonl", "name": "b.jsonl"}], "", ["b.jsonl: name is given twice"]),
        ([{"path": "a.jsonl", "wieght": 2}], "", ["do: did you mean weight?"]),
        ([{"path": "a.jsonl", "chat_template": "chatml"}], "", ["do: say it for all: --data.chat"]),
        ([{"path": "a.jsonl", "max_rows": 0}], "", ["max_rows of a.jsonl: out of range\n  got: 0"]),
        ([{"path": "a.jsonl", "max_rows": 1.5}], "", ["a.jsonl: max_rows can not be read"]),
        ([{"path": "a.jsonl", "format": "chatt"}, "b.jsonl"], "", ["did you mean chat?"]),
        ([{"path": "a.jsonl", "val_file": "gone.jsonl"}], "", ["--dataset gone.jsonl: does not"]),
        ([{"path": "a.jsonl", "split": "dev"}, "o/d"], "",
         ["--dataset: a.jsonl: train_split: would have no effect: the rows of a.jsonl have no s"]),
        ([{"path": "samsum_dataset", "format": "chat"}, "a.jsonl"], "",
         ["samsum_dataset: format: would have no effect: samsum_dataset has a prompt"]),
        ("alpaca_dataset,a.jsonl", "", ["--dataset alpaca_dataset: needs --data.train_file"]),
        ("custom_dataset,a.jsonl", "", ["custom_dataset: needs --custom_dataset.file"]),
        ("custom_dataset,a.jsonl", "--custom_dataset.file mine.py --data.val_fraction 0.1",
         ["--data.val_fraction: would have no effect: the custom data set makes both splits"]),
        ("a.jsonl,b.jsonl", "--data.train_split x", ["--data.train_split: would have no effect"]),
        ("a.jsonl,b.jsonl", "--custom_dataset.file mine.py", ["--custom_dataset.file: would have"]),
        ("a.jsonl,o/d", "--data.val_fraction 0.1 --data.val_split dev",
         ["--data.val_fraction contradicts --data.val_split"]),
        ("a.jsonl,o/d", "--data.val_file set/a.jsonl --data.val_split dev",
         ["--data.val_split: would have no effect: --data.val_file is read instead"]),
        ([{"path": "a.jsonl", "val_file": "set/a.jsonl"}, "b.jsonl"], "--data.val_fraction 0.1",
         ["--data.val_fraction contradicts val_file of a.jsonl"]),
        ([{"path": "a.jsonl", "format": "chat"}, {"path": "b.jsonl", "format": "text"}],
         "--data.format chat", ["--data.format: would have no effect: each set has its own"]),
        ("a.jsonl,set:1", "--output_dir set",
         ["--output_dir set: this is the folder of --dataset", "some sets have a weight"]),
    ],
)  # fmt: skip
def test_faults(flags_of, value, words, expected):
    faults = faults_of(lambda: parse(flags_of(value, words)))
    for part in expected:
        assert any(part in fault for fault in faults), faults
    assert len(faults) == len(expected), faults


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("a.jsonl,o/d", "--data.train_split x --data.val_split dev"),  # the hub's set has splits
        ("samsum_dataset:1,a.jsonl:2", "--data.format chat --data.columns messages=turns"),
        ("alpaca_dataset,a.jsonl", "--data.train_file b.jsonl"),
        ("custom_dataset:1,a.jsonl:1", "--custom_dataset.file mine.py --data.val_file b.jsonl"),
        ("a.jsonl,b.jsonl", "--data.val_fraction 0.1"),
        ([{"path": "a.jsonl", "val_file": "set/a.jsonl", "max_rows": 10}, "b.jsonl"], ""),
        ([{"path": "o/d", "split": "x"}, {"path": "o/d", "split": "y"}], ""),
        (
            [
                {"path": "alpaca_dataset", "train_file": "a.jsonl"},
                {"path": "grammar_dataset", "train_file": "b.jsonl"},
            ],
            "",
        ),
    ],
)
def test_what_is_allowed(flags_of, value, words):
    assert parse(flags_of(value, words)).warnings == ()


def test_all_faults_are_told_together(flags_of):
    value = "a.jsonl:x,a.jsonl:-1,gone.jsonl,o/d:0"
    faults = faults_of(lambda: parse(flags_of(value, "--lr x")))
    told = "\n".join(faults)
    for part in ("weight can not be read", "got: -1", "gone.jsonl: does not", "got: none: gone",
                 "got: 0", "a.jsonl is given twice", "--lr: bad value"):  # fmt: skip
        assert part in told
    assert len(faults) == 7


def test_the_words_of_other_tools(flags_of):
    words = "--interleave_probs 0.7,0.3 --dataset_mixer x"
    settled, meant = faults_of(lambda: parse(flags_of("a.jsonl", words)))
    assert "do: leave it out: weights of several sets stand in --dataset (a.jsonl:0.7" in settled
    assert "do: did you mean --dataset?" in meant


def test_a_run_yaml_repeats_its_run(flags_of, needed):
    value = [{"path": "a.jsonl", "weight": 0.7, "max_rows": 5, "columns": {"output": "x"}},
             {"path": "o/d", "weight": 3, "split": "dev", "train_on": "all"}]  # fmt: skip
    config = parse(flags_of(value)).config
    Path("run.yaml").write_text(yaml.safe_dump(to_mapping(config)))
    again = parse({"config": "run.yaml"}).config
    assert again == config
    typed = parse(flags_of(dataset_words(config))).config
    assert typed.train.dataset == config.train.dataset


def test_a_yaml_of_a_person(flags_of, needed):
    Path("run.yaml").write_text(
        "model_name: o/m\noutput_dir: out\ndataset:\n  - a.jsonl:0.7\n"
        "  - path: b.jsonl\n    weight: 0.3\n    max_rows: 1000\n    format: chat\n"
    )
    first, second = sets_of(parse({"config": "run.yaml"}).config)
    assert (first.name, first.weight, first.max_rows, first.own) == ("a.jsonl", 0.7, None, {})
    assert (second.weight, second.max_rows, second.own) == (0.3, 1000, {"format": "chat"})


def test_a_set_has_the_settings_of_all_but_for_its_own(flags_of):
    value = [{"path": "o/d", "split": "dev"}, "o/e"]
    config = parse(flags_of(value, "--data.train_split x")).config
    first, second = (config_of(config, one) for one in sets_of(config))
    assert (first.train.dataset, first.data.train_split) == ("o/d", "dev")
    assert (second.train.dataset, second.data.train_split) == ("o/e", "x")


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        ("a.jsonl", "a.jsonl"),
        (WEIGHTED, "a.jsonl:0.7,b.jsonl:0.3"),
        ([{"name": "a"}, {"name": "b"}], "a,b"),
        ([{"name": "a", "weight": 1 / 3}], "a:0.3333333333333333"),
        ([{"name": "a,b"}, {"name": "b"}], '[{"name": "a,b"}, {"name": "b"}]'),
    ],
)
def test_the_flag_as_one_may_type_it(dataset, words):
    assert dataset_words(RunConfig(train=TrainConfig(dataset=dataset))) == words
