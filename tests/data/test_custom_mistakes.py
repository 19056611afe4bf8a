"""The place and the message of every mistake in a user's own code."""

import pytest

from ftrecipes.config.errors import DataError
from ftrecipes.config.schema import CustomDatasetConfig
from ftrecipes.data.custom import load_custom
from tests.data.conftest import TOKENIZER


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import nothing_like_it", "mine.py line 1: ModuleNotFoundError: No module named"),
        ("x = 1\nx.y", "mine.py line 2: AttributeError"),
        ("x = 1\ndef f(:\n", "mine.py line 2: SyntaxError"),
        (
            "def get_custom_dataset(config, tokenizer, split):\n    return rows\n",
            "mine.py line 2: NameError: name 'rows' is not defined\n  in: get_custom_dataset(..., "
            "split='train')",
        ),
        (
            "import json\ndef get_custom_dataset(config, tokenizer, split):\n    json.loads('{')\n",
            "mine.py line 3: json.decoder.JSONDecodeError",
        ),
        (
            "def get_custom_dataset(config, tokenizer, split):\n    yield {}\n"
            "    raise KeyError(7)",
            "mine.py line 3: KeyError: 7",
        ),
        (
            "def get_custom_dataset(config, tokenizer, split):\n    return config.colour\n",
            "line 2: AttributeError",
        ),
        (
            "def get_custom_dataset(config):\n    return []\n",
            "TypeError: get_custom_dataset() takes",
        ),
        ("def get_custom_dataset(*a):\n    return {'train': []}\n", "TypeError: returned dict"),
        ("def get_custom_dataset(*a):\n    return 7\n", "TypeError"),
        ("get_custom_dataset = 7", "get_custom_dataset is no function"),
        (
            "import os\ndef my_rows(*a): ...\n",
            "no function 'get_custom_dataset'.\n  got: my_rows\n",
        ),
        ("", "got: no function"),
        ("import sys\nsys.exit()\n", "mine.py line 2: SystemExit"),
        ("def get_custom_dataset(*a):\n    raise SystemExit(0)\n", "mine.py line 2: SystemExit: 0"),
        (
            "import argparse\nargparse.ArgumentParser().parse_args(['--lr'])\n",
            "mine.py line 2: SystemExit: 2",
        ),
        (
            "class Own(BaseException): ...\nraise Own('x')\n",
            "mine.py line 2: custom_dataset_mine.Own",
        ),
        (
            "class Own(Exception):\n    def __str__(self):\n        return 1 / 0\nraise Own\n",
            "mine.py line 4: custom_dataset_mine.Own: <exception str() failed>",
        ),
    ],
)
def test_mistakes_in_the_users_file(load, code, message):
    with pytest.raises(DataError) as caught:
        load(code)
    assert message in str(caught.value)


def test_ctrl_c_in_the_users_code_stays_one(load):
    with pytest.raises(KeyboardInterrupt):
        load("raise KeyboardInterrupt")


def test_a_file_given_by_a_relative_path_reports_its_line(tmp_path, monkeypatch):
    """Also when the code has gone to another folder meanwhile."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.py").write_text("import os\nos.chdir('/')\nx.y\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"^data/mine\.py line 3: NameError"):
        load_custom(CustomDatasetConfig(file="data/mine.py"), TOKENIZER, is_train=True)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (None, "needs --custom_dataset.file"),
        ("nowhere/mine.py:rows", "nowhere/mine.py: there is no such file"),
        ("mine.py", "mine.py: there is no such file"),
    ],
)
def test_no_file(file, message):
    with pytest.raises(DataError, match=message):
        load_custom(CustomDatasetConfig(file=file), TOKENIZER, is_train=True)
