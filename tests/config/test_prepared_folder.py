"""`--to` of `ftrecipes prepare`, and prepared folders as data sets."""

import pytest

from ftrecipes.config.errors import ConfigError
from ftrecipes.config.parse import parse_words
from ftrecipes.config.schema import PrepareConfig, PreviewConfig, RunConfig


@pytest.fixture
def parse(tmp_path, monkeypatch):
    """Settings of words that follow the model's name, in a folder with rows, prepared and not."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text("{}")
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "prepared.json").write_text("{}")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("")
    (tmp_path / "empty").mkdir()

    def parse_more(words, into=PrepareConfig):
        words = ["--model_name", "o/m", *words.split()]
        return parse_words(words, into=into, writes=False).config

    return parse_more


@pytest.mark.parametrize("folder", ["new", "deep/new", "empty", "rows"])
def test_folders_to_write(parse, folder):
    assert parse(f"--dataset a.jsonl --to {folder}").to == folder


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("--dataset a.jsonl", "--to: required"),
        ("--dataset a.jsonl --to a.jsonl", "--to a.jsonl: no folder"),
        ("--dataset a.jsonl --to other", "--to other: holds other files"),
        ("--dataset a.jsonl --to a.jsonl/rows", "can not be written to"),
        ("--dataset rows --to new", "--dataset rows: is prepared already"),
        ("--dataset a.jsonl,rows --to new", "--dataset rows: prepared rows can not be in a list"),
        ("--dataset a.jsonl --to new --lrr 1", "--lrr"),
    ],
)
def test_faults(parse, words, fault):
    with pytest.raises(ConfigError) as caught:
        parse(words)
    assert fault in str(caught.value)
    assert str(caught.value).count("do:") <= 2


def test_a_prepared_folder_is_a_data_set(parse):
    for into in (RunConfig, PreviewConfig):
        words = "--dataset rows --output_dir out"
        assert parse(words, into=into).train.dataset == "rows"
    with pytest.raises(ConfigError, match="prepared rows can not be in a list"):
        parse("--dataset rows:0.5,a.jsonl:0.5 --output_dir out", into=RunConfig)
