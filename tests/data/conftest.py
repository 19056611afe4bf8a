"""Data sets of a user's own code, written on the spot."""

import textwrap

import pytest

from ftrecipes.config.schema import CustomDatasetConfig
from ftrecipes.data.custom import load_custom
from tests.tiny_tokenizers import build_tokenizer

TOKENIZER = build_tokenizer("chatml")


@pytest.fixture
def load(tmp_path):
    """Write code as a custom data set and load its rows."""

    def load_code(code, *, function="", is_train=True, **fields):
        path = tmp_path / "mine.py"
        path.write_text(textwrap.dedent(code))
        section = CustomDatasetConfig(file=f"{path}{function}", **fields)
        return load_custom(section, TOKENIZER, is_train=is_train)

    return load_code
