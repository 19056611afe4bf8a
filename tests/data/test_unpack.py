"""Packed files: the same rows as unpacked, and faults that name file and line."""

import gzip

import pyarrow
import pytest

from ftrecipes.config.errors import DataError
from ftrecipes.data.files import read_file
from ftrecipes.data.paths import read_paths
from tests.data.test_files import ROWS, jsonl

CONTENTS = {
    "rows.jsonl": jsonl(),
    "rows.json": f"[{jsonl().replace(chr(10), ',')[:-1]}]",
    "rows.csv": "instruction,output\nHi,a\nAnd?,b\n",
    "rows.txt": "one\n\ntwo\n",
}


def zst(content: bytes) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


PACK = {".gz": gzip.compress, ".zst": zst}


def write(path, content: bytes):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("packing", [".gz", ".zst", ".GZ"])
@pytest.mark.parametrize("name", CONTENTS)
def test_the_rows_are_those_of_the_unpacked_file(tmp_path, name, packing):
    content = CONTENTS[name].encode()
    plain = read_file(write(tmp_path / name, content))
    packed = read_file(write(tmp_path / f"{name}{packing}", PACK[packing.lower()](content)))
    assert list(packed.rows) == list(plain.rows)
    assert packed.sources == [source.replace(name, f"{name}{packing}") for source in plain.sources]
    assert packed.fingerprint not in (None, plain.fingerprint)


@pytest.mark.parametrize("packing", PACK)
def test_what_is_larger_than_a_chunk_and_in_several_parts(tmp_path, packing):
    """As `cat a.gz b.gz` makes it."""
    lines = [f"line {number} {'x' * 70}" for number in range(40_000)]
    halves = ["".join(f"{line}\n" for line in half) for half in (lines[:9], lines[9:])]
    content = b"".join(PACK[packing](half.encode()) for half in halves)
    raw = read_file(write(tmp_path / f"a.txt{packing}", content))
    assert [row["text"] for row in raw.rows] == lines


def test_a_frame_without_content_may_come_first(tmp_path):
    """Packing in parallel writes such frames, of any of sixteen kinds."""
    frame = b"\x5a\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"size"
    raw = read_file(write(tmp_path / "a.txt.zst", frame + zst(b"one\n")))
    assert raw.rows == [{"text": "one"}]


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("keep", [0.99, 0.5, 5])
@pytest.mark.parametrize("name", CONTENTS)
def test_a_packed_file_that_is_cut(tmp_path, name, packing, keep):
    """D06: also where the cut is between two rows."""
    whole = PACK[packing](CONTENTS[name].encode() * 50)
    cut = whole[: int(keep * len(whole)) if keep < 1 else keep]
    with pytest.raises(DataError, match=rf"{name}{packing}: the packed file is cut or damaged"):
        read_file(write(tmp_path / f"{name}{packing}", cut))


def test_damage_inside(tmp_path):
    packed = bytearray(gzip.compress(jsonl().encode() * 50))
    packed[40:60] = bytes(20)
    with pytest.raises(DataError, match=r"rows.jsonl.gz: the packed file is cut or damaged"):
        read_file(write(tmp_path / "rows.jsonl.gz", bytes(packed)))


@pytest.mark.parametrize(
    ("name", "packing", "meant"),
    [
        ("a.jsonl.gz", None, "not packed that way"),
        ("a.jsonl.zst", None, "not packed that way"),
        ("a.jsonl", ".gz", r"packed as .gz, .*\n.*\n  do: name it a.jsonl.gz"),
        ("a.txt", ".zst", r"packed as .zst, .*\n.*\n  do: name it a.txt.zst"),
        ("a.csv.gz", ".zst", r"packed as .zst, .*\n.*\n  do: name it a.csv.zst"),
    ],
)
def test_a_name_and_a_content_that_say_different_things(tmp_path, name, packing, meant):
    content = jsonl().encode()
    content = content if packing is None else PACK[packing](content)
    with pytest.raises(DataError, match=rf"^{name}: its content is {meant}"):
        read_file(write(tmp_path / name, content))


@pytest.mark.parametrize("packing", PACK)
def test_faults_inside_name_the_line(tmp_path, packing):
    name = f"a.jsonl{packing}"
    with pytest.raises(DataError, match=rf"{name} line 2: not UTF-8"):
        read_file(write(tmp_path / name, PACK[packing](b'{"x": "a"}\n{"x": "\xe9"}\n')))
    assert len(read_file(write(tmp_path / name, PACK[packing](b"")))) == 0
    assert len(read_file(write(tmp_path / name, b""))) == 0


def test_packed_files_of_a_folder(tmp_path):
    """Beside others; Parquet packs its columns itself."""
    write(tmp_path / "b.jsonl.gz", gzip.compress(jsonl(ROWS[:1]).encode()))
    write(tmp_path / "c.jsonl", jsonl(ROWS[1:]).encode())
    write(tmp_path / "a.parquet.gz", b"")
    write(tmp_path / "a.tar.gz", b"")
    raw = read_paths(str(tmp_path))
    assert raw.sources == ["b.jsonl.gz line 1", "c.jsonl line 1"]
    for name in ("a.parquet.gz", "a.tar.gz"):
        with pytest.raises(DataError, match="not a file of rows"):
            read_file(tmp_path / name)
