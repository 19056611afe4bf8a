"""Files behind URLs: fetched by whatever driver fsspec has, read as local ones, then gone."""

import gzip
import json
import sys
import tempfile

import fsspec
import pytest

from ftrecipes.config.errors import DataError
from ftrecipes.data.paths import read_paths
from ftrecipes.data.remote import fetch

ROWS = [{"instruction": "Hi", "output": "Hello"}, {"instruction": "And?", "output": "Paris"}]
TEXT = "".join(json.dumps(row) + "\n" for row in ROWS)
KNOWN = sys.modules["fsspec.registry"].known_implementations


@pytest.fixture
def put():
    """Writes to fsspec's file system in memory, which all of this process share."""
    files = fsspec.filesystem("memory")

    def write(path, content):
        files.pipe(path, content.encode() if isinstance(content, str) else content)

    yield write
    files.store.clear()
    files.pseudo_dirs[:] = [""]


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_file_is_read_as_one_of_this_machine_and_leaves_nothing(put, temporary):
    put("/set/rows.jsonl", TEXT)
    raw = read_paths("memory://set/rows.jsonl")
    assert list(raw.rows) == ROWS
    assert raw.name == "rows.jsonl"
    assert raw.sources == ["rows.jsonl line 1", "rows.jsonl line 2"]
    assert list(temporary.iterdir()) == []
    local = temporary / "rows.jsonl"
    local.write_text(TEXT)
    assert read_paths(local.as_uri()) == read_paths(str(local)) == raw


def test_several_files(put):
    """In the order of their names; those of other kinds are passed over."""
    put("/set/b/rows.jsonl", TEXT)
    put("/set/a/rows.jsonl", TEXT)
    put("/set/a/rows.csv.gz", gzip.compress(b"instruction,output\nHi,Ho\n"))
    put("/set/a/notes.md", "no rows")
    raw = read_paths("memory://set/*/*")
    lines = [f"{folder}/rows.jsonl line {line}" for folder in "ab" for line in (1, 2)]
    assert raw.sources == ["a/rows.csv.gz line 2", *lines]
    assert raw.name == "memory://set/*/*"


def test_the_content_makes_the_key_of_the_cache(put):
    put("/rows.jsonl", TEXT)
    first = read_paths("memory://rows.jsonl").fingerprint
    put("/other/rows.jsonl", TEXT)
    assert read_paths("memory://other/rows.jsonl").fingerprint == first
    put("/rows.jsonl", TEXT * 2)
    assert read_paths("memory://rows.jsonl").fingerprint != first


def test_a_bad_line_of_a_fetched_file_is_told_by_its_name(put):
    put("/rows.json", "[{]")
    with pytest.raises(DataError, match=r"^rows.json line 1: the JSON array is cut or malformed"):
        read_paths("memory://rows.json")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("memory://none.jsonl", ["memory://none.jsonl: can not be fetched", "FileNotFoundError"]),
        ("memory://none/*.jsonl", ["memory://none/*.jsonl: matches no data file"]),
        ("nosuch://a/b.jsonl", ["nosuch://a/b.jsonl: can not be fetched", "not known: nosuch"]),
        ("undriven://a/b.jsonl", ["nothing that is installed reads undriven://", "pip install it"]),
    ],
)
def test_what_can_not_be_fetched(put, monkeypatch, temporary, url, words):
    undriven = {"class": "no_such_module.FileSystem", "err": "pip install it"}
    monkeypatch.setitem(KNOWN, "undriven", undriven)
    with pytest.raises(DataError) as caught:
        read_paths(url)
    assert all(word in str(caught.value) for word in words)
    assert list(temporary.iterdir()) == []


def test_what_a_driver_raises_is_told_without_secrets(monkeypatch):
    class Refusing(fsspec.AbstractFileSystem):
        protocol = "https"

        @classmethod
        def _strip_protocol(cls, path):
            return path

        def get_file(self, rpath, lpath, **options):
            raise RuntimeError(f"403 Forbidden, url='{rpath}'")

    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "https", Refusing)
    with pytest.raises(DataError) as caught:
        read_paths("https://me:word@host/rows.jsonl?key=secret")
    message = str(caught.value)
    assert message.startswith("https://host/rows.jsonl: can not be fetched.\n  got: RuntimeError")
    assert "403 Forbidden, url='https://host/rows.jsonl'" in message
    assert not any(secret in message for secret in ("word", "secret", "me:"))


def test_copies_stay_in_their_folder(put, tmp_path):
    put("/set/x/../../../rows.jsonl", TEXT)
    (tmp_path / "in").mkdir()
    assert fetch("memory://set/**/*.jsonl", tmp_path / "in") == [tmp_path / "in/x/rows.jsonl"]
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
