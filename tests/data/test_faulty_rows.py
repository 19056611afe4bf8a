"""Rows that can not be used, whatever is wrong with them, are reported in one error."""

import json

import pytest

from ftrecipes.config.errors import DataError
from ftrecipes.config.sections import DataConfig
from ftrecipes.data.files import read_file
from ftrecipes.data.tokenize import tokenize_rows
from tests.tiny_tokenizers import build_tokenizer

ROW = json.dumps({"instruction": "a", "output": "b"}) + "\n"


def faults_of(path) -> list[str]:
    """The lines of the error that the file's rows end in."""
    raw = read_file(path)
    with pytest.raises(DataError) as caught:
        tokenize_rows(raw, build_tokenizer("none"), data=DataConfig(), context_length=99)
    return str(caught.value).splitlines()


@pytest.fixture
def write(tmp_path):
    def write_text(name, text):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8", newline="")
        return path

    return write_text


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_a_cut_last_line(write, end):
    """D06: with the column where the text stops making sense, counted from 1."""
    path = write("train.jsonl", ROW * 2 + '{"instruction": "a", "out' + end)
    first, second, *_ = faults_of(path)
    assert first == "1 of 3 rows can not be used."
    assert second.strip().startswith("train.jsonl line 3: no whole JSON object: Unterminated")
    assert second.endswith("(column 22)")


def test_faults_of_syntax_and_of_shape_are_told_together(write):
    path = write("train.jsonl", ROW + "{'a': 1}\n" + '{"instruction": "a"}\n' + "[1, 2]\n7 8\n")
    assert faults_of(path) == [
        "4 of 5 rows can not be used.",
        "  train.jsonl line 2: no whole JSON object: Expecting property name enclosed in double "
        "quotes (column 2)",
        "  train.jsonl line 3: key 'output' is missing",
        "  train.jsonl line 4: the row is a list; expected an object with keys",
        "  train.jsonl line 5: no whole JSON object: Extra data (column 3)",
        "  do: correct these rows, or leave them out with --data.on_bad_row skip",
    ]


def test_a_file_without_one_whole_row(write):
    first, fault, _ = faults_of(write("train.jsonl", "a\nb\n"))
    assert first == "2 of 2 rows can not be used."
    assert fault.startswith("  train.jsonl line 1, train.jsonl line 2: no whole JSON object")


def test_csv_rows_with_too_many_and_too_few_cells(write):
    path = write("a.csv", "instruction,output\n1,2\n1,2,3\n1\n,2\n")
    assert faults_of(path) == [
        "3 of 4 rows can not be used.",
        "  a.csv line 3: 3 cells; the header has 2 (instruction, output); a cell that holds a "
        "comma stands between quotation marks",
        "  a.csv line 4: 1 cells; the header has 2 (instruction, output); a cell that holds a "
        "comma stands between quotation marks",
        "  a.csv line 5: key 'instruction' is empty; expected text",
        "  do: correct these rows, or leave them out with --data.on_bad_row skip",
    ]


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ('{"instruction": "a", "output": "b", "output": "c"}', "key 'output' is given twice"),
        ('{"x": {"y": 1, "y": 2}}', "key 'y' is given twice"),
        ('{"instruction": %s}' % ("7" * 5000), "a number is too long"),
        ("[" * 200_000, "too many nested brackets"),
    ],
)  # fmt: skip
def test_what_json_itself_does_not_call_an_error(write, row, fault):
    """json keeps the last of two keys; Python's limits end in other exceptions."""
    _, first, _ = faults_of(write("train.jsonl", ROW + row))
    assert "train.jsonl line 2: " in first
    assert fault in first


def test_the_same_in_an_array(write):
    rows = [ROW, '{"instruction": "a", "output": "b", "output": "c"}', ROW]
    assert faults_of(write("a.json", "[\n" + ",\n".join(rows) + "]"))[:2] == [
        "1 of 3 rows can not be used.",
        "  a.json line 4: key 'output' is given twice",
    ]
    for row in ("7" * 5000, "[" * 200_000):
        with pytest.raises(DataError, match=r"a\.json line 2: the JSON array is cut or malformed"):
            read_file(write("a.json", f"[1,\n{row}]"))
