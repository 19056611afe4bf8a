"""Several files at once: which are read, what their rows are called, when they belong together."""

import json

import pytest

from ftrecipes.config.errors import DataError
from ftrecipes.data.paths import read_paths

ROW = {"instruction": "a", "output": "b"}


@pytest.fixture
def folder(tmp_path):
    """A folder of four kinds of data files, and of files that are none."""
    folder = tmp_path / "rows"
    (folder / "more").mkdir(parents=True)
    (folder / "a.jsonl").write_text('{"instruction": "1", "output": "b"}\n\n{"output": "c"}\n')
    (folder / "b.csv").write_text("instruction,input,output\nx,y,z\n")
    (folder / "c.json").write_text(json.dumps([ROW, ROW]))
    (folder / "d.JSONL").write_text("")
    for name in (".hidden.jsonl", "README.md", "more/e.jsonl", "script.py"):
        (folder / name).write_text(json.dumps(ROW))
    return folder


def test_a_folder_is_its_data_files_in_order(folder):
    raw = read_paths(str(folder))
    assert raw.sources == [
        "a.jsonl line 1",
        "a.jsonl line 3",
        "b.csv line 2",
        "c.json row 1",
        "c.json row 2",
    ]
    assert raw.columns == ["instruction", "output", "input"]
    assert raw.rows[2] == {"instruction": "x", "input": "y", "output": "z"}
    assert raw.name == str(folder)


def test_a_glob(folder):
    assert read_paths(f"{folder}/[bc].*").sources[0] == "b.csv line 2"
    assert len(read_paths(f"{folder}/**/*.jsonl")) == 3
    one = read_paths(f"{folder}/b*")
    assert (one.name, one.sources[0]) == ("b.csv", "b.csv line 2")


def test_files_of_one_name_are_told_apart(tmp_path):
    for name in ("x", "y"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.json").write_text(json.dumps([ROW]))
    raw = read_paths(f"{tmp_path}/*/rows.json")
    assert raw.sources == ["x/rows.json line 1", "y/rows.json line 1"]


def test_nothing_there(folder):
    for value in (f"{folder}/*.parquet", f"{folder}/more/../more/*.csv"):
        with pytest.raises(DataError, match=r"no data files\.\n  expected: files ending in"):
            read_paths(value)
    (folder / "empty").mkdir()
    with pytest.raises(DataError, match="empty: there are no data files"):
        read_paths(str(folder / "empty"))


def test_the_faults_of_all_files_are_told(folder):
    (folder / "c.json").write_text("[1,")
    (folder / "e.jsonl").write_bytes(b"\xff\n")
    with pytest.raises(DataError) as caught:
        read_paths(str(folder))
    assert "c.json line 1: the JSON array is cut" in str(caught.value)
    assert "e.jsonl line 1: not UTF-8" in str(caught.value)


def test_files_without_a_column_in_common(folder):
    (folder / "z.txt").write_text("words\n")
    with pytest.raises(DataError) as caught:
        read_paths(str(folder))
    assert "a.jsonl: instruction, output\n  z.txt: text\n" in str(caught.value)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_text_is_one_row_a_line(tmp_path, mark, end):
    """Blank lines are no rows; what else is in a line stays."""
    path = tmp_path / "a.txt"
    path.write_bytes(mark + end.join([b"one", b"", b"  two \t", b" ", b"\xc3\xa9"]))
    raw = read_paths(str(path))
    assert [row["text"] for row in raw.rows] == ["one", "  two \t", "\u00e9"]
    assert raw.sources == ["a.txt line 1", "a.txt line 3", "a.txt line 5"]


def test_the_fingerprint_is_of_content_and_names(folder):
    first = read_paths(str(folder)).fingerprint
    assert first is not None
    assert read_paths(str(folder)).fingerprint == first
    text = (folder / "a.jsonl").read_text()
    (folder / "a.jsonl").write_text(text.replace("1", "2"))
    assert read_paths(str(folder)).fingerprint != first
    (folder / "a.jsonl").write_text(text)
    assert read_paths(str(folder)).fingerprint == first
    (folder / "a.jsonl").rename(folder / "aa.jsonl")
    assert read_paths(str(folder)).fingerprint != first
