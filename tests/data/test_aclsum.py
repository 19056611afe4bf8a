"""The shipped example of a custom data set, on look-alike files."""

import json
import sys
import zipfile
from pathlib import Path

import pytest

from ftrecipes.config.errors import DataError
from ftrecipes.config.sections import CustomDatasetConfig, DataConfig
from ftrecipes.data.custom import load_custom
from ftrecipes.data.facts import IGNORED
from ftrecipes.data.tokenize import tokenize_rows
from tests.data.dialogs import rows_of, trained_text
from tests.tiny_tokenizers import build_tokenizer

RECIPE = Path(__file__).parents[2] / "recipes" / "datasets" / "aclsum.py"
ANSWER = "Challenge: It is hard.\nApproach: They try.\nOutcome: It works."


@pytest.fixture
def folder(tmp_path):
    """The data files of the package, five papers in all."""
    folder = tmp_path / "aclsum" / "dataset"
    folder.mkdir(parents=True)
    for name, count in (("train", 2), ("val", 1), ("test", 2)):
        papers = [
            {
                "id": f"{name} {number}",
                "summary": {
                    "outcome": "It works. ",
                    "challenge": "It is hard.",
                    "approach": "They try.",
                },
                "sentences": {"abstract": ["We try .", f"It is {name} {number} ."]},
            }
            for number in range(count)
        ]
        text = "".join(json.dumps(paper) + "\n" for paper in papers)
        (folder / f"{name}.jsonl").write_text(text)
    return folder


def load(*, is_train=True, **fields):
    section = CustomDatasetConfig(file=str(RECIPE), **fields)
    return load_custom(section, build_tokenizer("chatml"), is_train=is_train)


def test_from_a_folder(folder):
    train = load(data_path=str(folder))
    question, answer = train.rows[1]["messages"]
    assert question["content"].endswith("\n\nWe try . It is train 1 .")
    assert answer == {"role": "assistant", "content": ANSWER}
    assert len(load(data_path=str(folder), is_train=False)) == 1
    assert len(load(data_path=str(folder), is_train=False, test_split="test")) == 2


def test_from_a_wheel(folder, tmp_path):
    wheel = tmp_path / "aclsum-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(folder / "train.jsonl", "aclsum/dataset/train.jsonl")
    assert list(load(data_path=str(wheel)).rows) == list(load(data_path=str(folder)).rows)


def test_from_the_installed_package_without_importing_it(folder, monkeypatch):
    (folder.parent / "__init__.py").write_text("raise ImportError('needs more than its data')\n")
    monkeypatch.syspath_prepend(folder.parents[1])
    assert len(load()) == 2
    assert "aclsum" not in sys.modules


def test_a_folder_without_the_files(tmp_path):
    with pytest.raises(DataError, match="No such file"):
        load(data_path=str(tmp_path))


@pytest.mark.parametrize("family", ["chatml", "llama3", "mistral", "gemma", "thinking"])
def test_it_works_with_any_template(folder, family):
    """D17"""
    tokenizer = build_tokenizer(family)
    raw = load(data_path=str(folder))
    data = DataConfig(truncation="error")
    for _, labels in rows_of(tokenize_rows(raw, tokenizer, data=data, context_length=999)):
        trained = trained_text(tokenizer, labels)
        assert trained.strip().startswith(ANSWER)
        assert [label for label in labels if label != IGNORED][-1] == tokenizer(
            {"gemma": "<end_of_turn>"}.get(family, tokenizer.eos_token), add_special_tokens=False
        )["input_ids"][0]


def test_it_names_the_package_that_is_missing(monkeypatch):
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "site-packages" not in entry])
    monkeypatch.delitem(sys.modules, "aclsum", raising=False)
    with pytest.raises(DataError, match="package aclsum is not installed: pip install --no-deps"):
        load()
