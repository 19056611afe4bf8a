"""Which rows a run gets for training and for validation."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from ftrecipes.config.errors import DataError
from ftrecipes.config.schema import CustomDatasetConfig, DataConfig, RunConfig, TrainConfig
from ftrecipes.data.sources import load_split
from tests.tiny_tokenizers import build_tokenizer

ROW = '{"instruction": "a", "output": "b"}\n'
TOKENIZER = build_tokenizer("none")


def config(dataset, *, run_validation=True, **data) -> RunConfig:
    train = TrainConfig(dataset=str(dataset), run_validation=run_validation)
    return RunConfig(train=train, data=DataConfig(**data))


@pytest.fixture
def train_file(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text(ROW * 3)
    return path


def test_a_local_file_has_no_validation_rows_of_its_own(train_file):
    assert len(load_split(config(train_file), TOKENIZER, "train")) == 3
    assert load_split(config(train_file), TOKENIZER, "validation") is None


def test_a_validation_file(train_file, tmp_path):
    (tmp_path / "val.json").write_text(f"[{ROW}]")
    run = config(train_file, val_file=str(tmp_path / "val.json"))
    assert len(load_split(run, TOKENIZER, "train")) == 3
    assert load_split(run, TOKENIZER, "validation").sources[0] == "val.json line 1"


def test_nothing_is_read_for_validation_when_it_is_off(train_file):
    """D14: the file is not there, and nobody asks for it."""
    run = config(train_file, val_file="/nowhere.jsonl", run_validation=False)
    assert load_split(run, TOKENIZER, "validation") is None
    with pytest.raises(DataError, match="nowhere"):
        load_split(config(train_file, val_file="/nowhere.jsonl"), TOKENIZER, "validation")


def test_a_missing_file_is_not_taken_for_a_hub_id(tmp_path):
    for name in ("train.jsonl", tmp_path / "rows", "./rows", "a b"):
        with pytest.raises(DataError, match="there is no such file"):
            load_split(config(name), TOKENIZER, "train")


def test_a_custom_data_set_makes_both_splits(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "def get_custom_dataset(dataset_config, tokenizer, split):\n"
        "    return [{'instruction': split, 'output': 'b'}]\n"
    )
    section = CustomDatasetConfig(file=str(path), train_split="a", test_split="b")
    run = replace(config("custom_dataset"), custom_dataset=section)
    assert load_split(run, TOKENIZER, "train").rows[0]["instruction"] == "a"
    assert load_split(run, TOKENIZER, "validation").rows[0]["instruction"] == "b"


HUB = """
import sys
from ftrecipes.config.errors import DataError
from ftrecipes.data.sources import load_hub
folder = sys.argv[1]
train = load_hub(folder, "train")
assert train.sources[1].endswith(" train row 2"), train.sources[1]
assert train.columns == ["instruction", "output"]
assert [row["output"] for row in train.rows] == ["b"] * 3
assert train.fingerprint and train.fingerprint == load_hub(folder, "train").fingerprint
assert train.fingerprint != load_hub(folder, "train[:2]").fingerprint
validation = load_hub(folder, None)
assert (len(validation), validation.name.split()[-1]) == (2, "validation")
assert load_hub(folder + "/../other", None) is None
for name, split, word in ((folder, "tset", "tset"), ("some/where", "train", "some/where")):
    try:
        load_hub(name, split)
    except DataError as error:
        assert word in str(error) and "do: check the id, the split and the network" in str(error)
    else:
        raise AssertionError(name)
"""


def test_hub_data_sets(tmp_path):
    """The library reads a folder as it reads a hub repository; an id is out of reach offline."""
    (tmp_path / "set").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "set" / "train.jsonl").write_text(ROW * 3)
    (tmp_path / "set" / "validation.jsonl").write_text(ROW * 2)
    (tmp_path / "other" / "train.jsonl").write_text(ROW)
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    result = subprocess.run(
        [sys.executable, "-c", HUB, tmp_path / "set"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
