"""Names of rows kept as numbers are the texts that they stand for."""

import pickle

import numpy as np

from ftrecipes.data.row_names import join_names, number_rows

LINES = number_rows("train.jsonl", "line", [1, 2, 17])
ROWS = number_rows("set train", "row", range(1, 3))


def test_a_name_is_the_text_of_its_row():
    assert LINES == ["train.jsonl line 1", "train.jsonl line 2", "train.jsonl line 17"]
    assert LINES[-1] == "train.jsonl line 17"
    assert LINES[1:] == ["train.jsonl line 2", "train.jsonl line 17"]
    assert pickle.loads(pickle.dumps(LINES)) == LINES
    assert LINES != ROWS
    assert LINES.pick([2, 0]) == ["train.jsonl line 17", "train.jsonl line 1"]


def test_names_one_behind_another():
    both = join_names([LINES, ROWS, LINES])
    assert both == [*LINES, *ROWS, *LINES]
    assert both.labels == ("train.jsonl line", "set train row")
    renamed = both.renamed(lambda label: f"rows/{label}")
    assert renamed == [f"rows/{name}" for name in both]


def test_parts_of_rows():
    parts = LINES.of_parts(np.array([0, 2, 2]), np.array([0, 1, 2]))
    assert parts == [
        "train.jsonl line 1",
        "train.jsonl line 17 part 1",
        "train.jsonl line 17 part 2",
    ]
    assert parts.find("train.jsonl line 17").tolist() == [1, 2]
    assert parts.find("train.jsonl line 17 part 2").tolist() == [2]


def test_a_row_is_found_by_its_name():
    both = join_names([LINES, ROWS])
    assert [both.find(name).tolist() for name in both] == [[at] for at in range(5)]
    for other in ("train.jsonl line 3", "train.jsonl line", "17", "", "line 1", "x line \u0661"):
        assert both.find(other).tolist() == []
