"""Rows for DPO and KTO are told from rows to learn, with a way to learn the better answers."""

import json
import re

import datasets
import pytest

from ftrecipes.config.errors import DataError
from ftrecipes.config.sections import DataConfig
from ftrecipes.data.formats import choose_reader
from ftrecipes.data.paths import read_paths
from ftrecipes.data.row_names import number_rows
from ftrecipes.data.rows import RawRows
from tests.data.dialogs import rows_of, tokenize, trained_text
from tests.data.tool_dialogs import says
from tests.tiny_tokenizers import build_tokenizer

CHATML = build_tokenizer("chatml")
ASKED, GOOD, BAD = [says("user", "Hi")], [says("assistant", "Hello")], [says("assistant", "What?")]
PAIRS = {
    "prompt and texts": ({"prompt": "Hi", "chosen": "Hello", "rejected": "What?"}, "completion"),
    "texts": ({"chosen": "Human: Hi\n\nHello", "rejected": "Human: Hi\n\nWhat?"}, "text"),
    "instruction": ({"instruction": "Hi", "chosen": "Hello", "rejected": "What?"}, "output"),
    "messages": ({"prompt": ASKED, "chosen": GOOD, "rejected": BAD}, "completion"),
    "dialogs": ({"chosen": ASKED + GOOD, "rejected": ASKED + BAD}, "messages"),
    "prompt and dialogs": (
        {"prompt": "Hi", "chosen": ASKED + GOOD, "rejected": ASKED + BAD},
        "messages",
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_pair_is_refused_and_the_advice_trains_the_better_answer(name):
    row, ours = PAIRS[name]
    for data in ({}, {"format": "sharegpt"}):
        with pytest.raises(DataError, match="rows are preferences, a better and a worse") as caught:
            tokenize([row | {"score": 1}], CHATML, **data)
        assert f"got: columns {', '.join(row)}, score" in str(caught.value)
    our, their = re.search(r"--data.columns (\w+)=(\w+)$", str(caught.value)).groups()
    assert our == ours
    [(_, labels)] = rows_of(tokenize([row], CHATML, columns={our: their}))
    assert trained_text(CHATML, labels).endswith("Hello<|im_end|>")
    assert "What?" not in trained_text(CHATML, labels)


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"messages": ASKED + GOOD, "chosen": ASKED + GOOD, "rejected": ASKED + BAD}, "chat"),
        (
            {
                "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}],
                "chosen": {"from": "gpt", "value": "Hello"},
                "rejected": {"from": "gpt", "value": "What?"},
            },
            "sharegpt",
        ),
        ({"instruction": "Hi", "output": "Hello", "kto_tag": False}, "instruction"),
        ({"prompt": "Hi", "completion": "Hello", "label": False}, "prompt_completion"),
        ({"prompt": "Hi", "completion": "Hello", "label": "False"}, "prompt_completion"),
    ],
)
def test_rows_that_can_be_read_too_are_read_when_the_format_is_named(row, named):
    with pytest.raises(DataError, match=r"preferences, a better|graded answers") as caught:
        tokenize([row, row], CHATML)
    assert f"with --data.format {named} the other columns are read" in str(caught.value)
    assert len(tokenize([row], CHATML, format=named)) == 1


@pytest.mark.parametrize("label", ["sports", 1, 0.5, None, "yes"])
def test_a_label_of_another_kind_is_only_a_column(label):
    rows = [{"prompt": "Hi", "completion": "Hello", "label": label}] * 2
    assert len(tokenize(rows, CHATML)) == 2
    assert (
        len(tokenize([rows[0] | {"label": True}, rows[0] | {"label": False}, rows[0]], CHATML)) == 3
    )
    assert len(tokenize([{"text": "Hi", "label": False}], CHATML)) == 1


def test_a_file_of_good_answers_alone_is_read():
    """As one is told to make it."""
    row = {"prompt": "Hi", "completion": "Hello", "label": True}
    assert len(tokenize([row, row], CHATML)) == 2
    with pytest.raises(DataError, match="keep the good ones in a file of their own"):
        tokenize([*[row] * 200, row | {"label": False}], CHATML)


def test_a_data_set_of_the_library():
    made = [{"prompt": "a", "completion": "b", "label": n > 1} for n in range(3)]
    rows = datasets.Dataset.from_list(made)
    raw = RawRows(rows, rows.column_names, "set", number_rows("set", "row", range(3)))
    with pytest.raises(DataError, match="graded answers"):
        choose_reader(raw, CHATML, DataConfig())


def test_files_of_a_folder_are_read_as_one(tmp_path):
    for name, label in (("a", True), ("b", False)):
        row = {"prompt": "Hi", "completion": "Hello", "label": label}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row))
    raw = read_paths(str(tmp_path))
    with pytest.raises(DataError, match=r"graded answers \(a.jsonl line 1\)"):
        choose_reader(raw, CHATML, DataConfig())
    last = raw.pick([1], fingerprint=None)
    assert (list(last.rows), last.sources) == ([raw.rows[1]], ["b.jsonl line 1"])


def test_only_one_half_of_a_pair_is_no_pair():
    assert len(tokenize([{"text": "Hi", "chosen": "a"}], CHATML)) == 1
    with pytest.raises(DataError, match="no known format"):
        tokenize([{"chosen": "a", "label": True}], CHATML)
