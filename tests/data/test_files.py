"""Local files: what is read, and how faults name file, line and key."""

import json
import os
import subprocess
import sys

import pytest

from ftrecipes.config.data_files import DATA_SUFFIXES, KINDS
from ftrecipes.config.errors import DataError
from ftrecipes.data.files import READERS, read_file

ROWS = [
    {"instruction": "Say \u00e9t\u00e9 \U0001f642", "output": "a\nb\n\nc"},
    {"instruction": "Add", "input": None, "output": "\u2028 is no line end"},
]


def write(path, content: str | bytes):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def jsonl(rows=ROWS, *, end="\n", **options) -> str:
    return "".join(json.dumps(row, ensure_ascii=False, **options) + end for row in rows)


@pytest.mark.parametrize("name", ["train.jsonl", "train.json"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_json_lines(tmp_path, name, mark, end):
    """D07 (b): also in a .json file; a byte order mark and CRLF make no difference."""
    path = write(tmp_path / name, mark + jsonl(end=end).encode())
    raw = read_file(path)
    assert list(raw.rows) == ROWS
    assert raw.columns == ["instruction", "output", "input"]
    assert raw.sources == [f"{name} line 1", f"{name} line 2"]


@pytest.mark.parametrize("name", ["train.jsonl", "train.json"])
def test_an_indented_array(tmp_path, name):
    """D07 (a): also in a .jsonl file; rows are named by the line on which they begin."""
    raw = read_file(write(tmp_path / name, "\ufeff \r\n" + json.dumps(ROWS, indent=2)))
    assert list(raw.rows) == ROWS
    assert raw.sources == [f"{name} line 3", f"{name} line 7"]


def test_an_array_on_one_line_names_rows(tmp_path):
    raw = read_file(write(tmp_path / "a.json", json.dumps(ROWS)))
    assert list(raw.rows) == ROWS
    assert raw.sources == ["a.json row 1", "a.json row 2"]


def test_empty_lines_are_no_rows_and_keep_the_count(tmp_path):
    raw = read_file(write(tmp_path / "a.jsonl", '{"x": 1}\n\n  \n{"x": 2}'))
    assert raw.sources == ["a.jsonl line 1", "a.jsonl line 4"]


@pytest.mark.parametrize("content", ["", "\n\n", "[]", " [ ] \n"])
def test_a_file_without_rows_is_empty(tmp_path, content):
    assert len(read_file(write(tmp_path / "a.json", content))) == 0


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('[\n{"x": 1},\n{"x": 2}', 3),
        ('[\n{"x": 1},\n{"x": "2', 3),
        ('[\n{"x": 1}\n{"x": 2}]', 3),
        ('[\n{"x": 1},\n]', 3),
        ('[\n{"x": 1}]\n{"x": 2}', 3),
        ("[\n", 2),
    ],
)
def test_a_cut_or_malformed_array(tmp_path, content, line):
    with pytest.raises(DataError, match=rf"a\.json line {line}: the JSON array is cut or malf"):
        read_file(write(tmp_path / "a.json", content))


def test_bytes_that_are_not_utf_8(tmp_path):
    path = write(tmp_path / "a.jsonl", b'{"x": "a"}\n{"x": "\xe9"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl line 2: not UTF-8 \(byte 8 of the line\)"):
        read_file(path)


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl"])
def test_bytes_that_are_utf_8_by_chance(tmp_path, name):
    """UTF-16 of plain letters is letters and NULs."""
    with pytest.raises(DataError, match="line 1: a NUL byte"):
        read_file(write(tmp_path / name, "text\nwords\n".encode("utf-16-le")))


@pytest.mark.parametrize("content", ["text\rwords\r", "text\rwords", "text\r"])
@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl"])
def test_lines_that_end_in_cr_alone_are_not_one_row(tmp_path, name, content):
    with pytest.raises(DataError, match="its lines end in CR alone"):
        read_file(write(tmp_path / name, content))


@pytest.mark.parametrize("blank", ["", "\n", " \n"])
def test_an_object_on_several_lines(tmp_path, blank):
    content = blank + json.dumps({"data": ROWS}, indent=1)
    with pytest.raises(DataError, match=r"a JSON object on several lines\.\n  got: keys data"):
        read_file(write(tmp_path / "a.json", content))


def test_utf_8_whatever_the_locale(tmp_path):
    """S13: LC_ALL=C once changed what was read."""
    path = write(tmp_path / "a.jsonl", jsonl())
    code = (
        "import sys; from ftrecipes.data.files import read_file;"
        "sys.exit(ascii(list(read_file(sys.argv[1]).rows)))"
    )
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    result = subprocess.run(
        [sys.executable, "-c", code, path], env=environment, capture_output=True, text=True
    )
    assert result.stderr.strip() == ascii(ROWS)


def test_csv(tmp_path):
    """Numbers and JSON stay text; cells may hold line ends; a row is named by its first line."""
    content = (
        "\ufeff\r\ninstruction,input,output\r\n"
        'a,,7\r\n"b\r\nc",x,"{""a"": 1}"\r\n\r\n' + "d,y," + "e" * 200_000 + "\r\n"
    )
    raw = read_file(write(tmp_path / "a.csv", content))
    assert list(raw.rows) == [
        {"instruction": "a", "input": "", "output": "7"},
        {"instruction": "b\nc", "input": "x", "output": '{"a": 1}'},
        {"instruction": "d", "input": "y", "output": "e" * 200_000},
    ]
    assert raw.sources == ["a.csv line 3", "a.csv line 4", "a.csv line 7"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('a,b\n1,2\n1,"2\n3', r"line 3: malformed CSV \(unexpected end of data\)"),
        ("a,a\n1,2\n", r"two columns have one name \(a, a\)"),
        ("a;b\n1;2\n", "the header is one cell.\n  got: a;b\n  expected: cells between commas"),
        ('"a"b,c\n1,2\n', "line 1: malformed CSV"),
        ('"a,b\n1,2\n', "line 1: malformed CSV"),
    ],
)
def test_malformed_csv(tmp_path, content, message):
    with pytest.raises(DataError, match=rf"a\.csv:? {message}"):
        read_file(write(tmp_path / "a.csv", content))


def test_parquet(tmp_path):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    raw = read_file(tmp_path / "a.parquet")
    # The first row decides an Arrow schema here, as it did for whoever wrote the file.
    assert [row["output"] for row in raw.rows] == [row["output"] for row in ROWS]
    assert raw.sources == ["a.parquet row 1", "a.parquet row 2"]


def test_a_broken_parquet_file(tmp_path):
    with pytest.raises(DataError, match=r"a\.parquet: can not be read as Parquet"):
        read_file(write(tmp_path / "a.parquet", b"PAR1 and no more"))


def test_a_parquet_file_with_a_text_that_is_none(tmp_path):
    import pyarrow
    from pyarrow import parquet

    array = pyarrow.StringArray.from_buffers(
        1, pyarrow.py_buffer(bytes([0, 0, 0, 0, 1, 0, 0, 0])), pyarrow.py_buffer(b"\xff")
    )
    parquet.write_table(pyarrow.table({"output": array}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: can not be read as Parquet"):
        read_file(tmp_path / "a.parquet")


def test_a_parquet_file_is_its_own_columns_and_no_others(tmp_path):
    """The library takes a folder named key=value for a column, and is asked not to."""
    import pyarrow
    from pyarrow import parquet

    folder = tmp_path / "output=7"
    folder.mkdir()
    parquet.write_table(pyarrow.table({"output": ["a"]}), folder / "a.parquet")
    assert read_file(folder / "a.parquet").rows == [{"output": "a"}]
    twice = pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 2, names=["output", "output"])
    parquet.write_table(twice, folder / "a.parquet")
    with pytest.raises(DataError, match="two columns have one name"):
        read_file(folder / "a.parquet")


@pytest.mark.parametrize("ending", DATA_SUFFIXES)
def test_a_file_that_can_not_be_read(tmp_path, ending):
    """Reading this process's memory from address 0 is an input/output error."""
    path = tmp_path / f"a{ending}"
    path.symlink_to("/proc/self/mem")
    with pytest.raises(DataError, match=rf"a\{ending}: can not be read"):
        read_file(path)
    with pytest.raises(DataError, match="can not be read"):
        read_file("a" * 5000 + ending)


def test_the_flags_know_the_same_kinds_of_files():
    assert tuple(READERS) == KINDS == DATA_SUFFIXES[: len(KINDS)]


def test_other_files_and_no_file(tmp_path):
    with pytest.raises(DataError, match=r"\.jsonl, \.json, \.csv, \.parquet, \.txt"):
        read_file(write(tmp_path / "a.md", "text"))
    with pytest.raises(DataError, match=r"b\.jsonl: there is no such file"):
        read_file(tmp_path / "b.jsonl")
