"""A local file to raw rows: JSONL, JSON, CSV, Parquet or text, packed or not, read as UTF-8.

JSON and CSV are read here and not by a data-frame library, because every fault must name its line
and a text must stay a text (a column of numbers, a row whose `input` is null).
"""

import codecs
import csv
import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ftrecipes.config.data_files import DATA_KINDS, DATA_SUFFIXES, plain_name
from ftrecipes.config.errors import DataError
from ftrecipes.data.json_text import JsonValues, check_end, skip_blank
from ftrecipes.data.rows import RawRows, Unreadable, collect_rows
from ftrecipes.data.unpack import open_plain

LARGEST_CELL = 2**31 - 1


def read_file(path: str | Path) -> RawRows:
    """The rows of a local file and the line (Parquet: the row) where each stands.

    A byte order mark is dropped and CRLF read as LF. A JSON array in a .jsonl file and JSONL in a
    .json file are known by their first character. Each line of a .txt file that is not blank is a
    row with the key `text`. Raises DataError naming file and line.
    """
    path = Path(path).expanduser()
    try:
        if not path.is_file():
            raise DataError(f"{path}: there is no such file.\n  do: check the path")
        if not path.name.lower().endswith(DATA_SUFFIXES):
            raise DataError(
                f"{path}: not a file of rows.\n  expected: a file ending in {DATA_KINDS}"
            )
        before = path.stat()
        raw = READERS[Path(plain_name(path.name)).suffix.lower()](path)
        with path.open("rb") as file:
            fingerprint = hashlib.file_digest(file, "sha256").hexdigest()
        after = path.stat()
        is_same = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
        # A file that is being written may have been another one when its rows were read.
        return replace(raw, fingerprint=fingerprint if is_same else None)
    except OSError as error:
        raise DataError(
            f"{path}: can not be read.\n  got: {error.strerror or error}\n"
            "  do: check the permissions and the disk, or copy the file elsewhere"
        ) from error


def _read_json(path: Path) -> RawRows:
    with open_plain(path) as file:
        start = file.read(4096).removeprefix(codecs.BOM_UTF8).lstrip()
    return _read_json_array(path) if start.startswith(b"[") else _read_json_lines(path)


def _read_json_lines(path: Path) -> RawRows:
    rows, numbers = [], []
    values = JsonValues()
    for number, line in _lines(path):
        if not line.strip():
            continue
        numbers.append(number)
        try:
            row = values.read_whole(line.rstrip("\n"))
        except json.JSONDecodeError as error:
            # Told with the other faults of the file, when its rows are read.
            row = Unreadable(f"no whole JSON object: {error.msg} (column {error.colno})")
        rows.append(row)
    if rows and isinstance(rows[0], Unreadable):
        _refuse_indented(path)
    return collect_rows(rows, name=path.name, lines=numbers)


def _refuse_indented(path: Path) -> None:
    """Raise DataError when the file begins with one object on several lines."""
    text = "".join(line for _, line in _lines(path))
    try:
        row, end = JsonValues().read(text, skip_blank(text, 0))
    except json.JSONDecodeError:
        return
    if isinstance(row, dict) and "\n" in text[:end].lstrip():
        raise DataError(
            f"{path.name}: a JSON object on several lines.\n  got: keys {', '.join(row)}\n"
            "  expected: one row a line, or an array of rows, [{...}, {...}]\n"
            "  do: write the rows that way"
        )


def _read_json_array(path: Path) -> RawRows:
    text = "".join(line for _, line in _lines(path))
    try:
        rows, lines = _array_items(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path.name} line {error.lineno}: the JSON array is cut or malformed there "
            f"({error.msg}, column {error.colno}).\n  do: write the file again"
        ) from error
    # A line tells a row when it begins no other.
    is_told = len(set(lines)) == len(lines)
    return collect_rows(rows, name=path.name, lines=lines if is_told else None)


def _array_items(text: str) -> tuple[list, list[int]]:
    """The items of a JSON array, and the line on which each begins."""
    values = JsonValues()
    items, lines = [], []
    line, counted = 1, 0
    at = skip_blank(text, text.index("[") + 1)
    while text[at : at + 1] != "]" or items:
        line, counted = line + text.count("\n", counted, at), at
        item, at = values.read(text, at)
        items.append(item)
        lines.append(line)
        at = skip_blank(text, at)
        if text[at : at + 1] == "]":
            break
        if text[at : at + 1] != ",":
            raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
        at = skip_blank(text, at + 1)
    check_end(text, at + 1)
    return items, lines


def _read_csv(path: Path) -> RawRows:
    rows, numbers = [], []
    usual_limit = csv.field_size_limit(LARGEST_CELL)
    reader = csv.reader((line for _, line in _lines(path)), strict=True)
    begins = 1
    try:
        header = next((cells for cells in reader if cells), [])
        begins = reader.line_num + 1
        for cells in reader:
            if cells:
                rows.append(_csv_row(header, cells))
                numbers.append(begins)
            begins = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            f"{path.name} line {begins}: malformed CSV ({error}).\n"
            '  expected: cells between commas, cells with commas or line ends between " marks'
        ) from error
    finally:
        csv.field_size_limit(usual_limit)
    if len(header) == 1 and (";" in header[0] or "\t" in header[0]):
        raise DataError(
            f"{path.name}: the header is one cell.\n  got: {header[0]}\n"
            "  expected: cells between commas, not between semicolons or tabs"
        )
    _check_names(path, header)
    return collect_rows(rows, name=path.name, lines=numbers)


def _csv_row(header: list[str], cells: list[str]) -> dict[str, str] | Unreadable:
    if len(cells) == len(header):
        return dict(zip(header, cells, strict=True))
    return Unreadable(
        f"{len(cells)} cells; the header has {len(header)} ({', '.join(header)}); a cell that "
        "holds a comma stands between quotation marks"
    )


def _check_names(path: Path, columns: list[str]) -> None:
    if len(set(columns)) < len(columns):
        raise DataError(f"{path.name}: two columns have one name ({', '.join(columns)}).")


def _read_text(path: Path) -> RawRows:
    lines = [(number, line.rstrip("\n")) for number, line in _lines(path) if line.strip()]
    rows = [{"text": line} for _, line in lines]
    return collect_rows(rows, name=path.name, lines=[number for number, _ in lines])


def _read_parquet(path: Path) -> RawRows:
    import pyarrow
    from pyarrow import parquet

    try:
        # Not read_table, which takes folders named key=value for columns.
        table = parquet.ParquetFile(path).read()
        _check_names(path, table.column_names)
        rows = table.to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path.name}: can not be read as Parquet ({error}).") from error
    return collect_rows(rows, name=path.name)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number and text of each line, ending in LF whatever the file has; LF alone ends a line."""
    with open_plain(path) as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
                _check_line_end(path, line)
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path.name} line {number}: not UTF-8 (byte {error.start + 1} of the line).\n"
                    "  do: save the file as UTF-8"
                ) from error
            if "\0" in text:
                raise DataError(
                    f"{path.name} line {number}: a NUL byte; the file is damaged, no text, or "
                    "UTF-16.\n  do: save the file as UTF-8"
                )
            yield number, text.removesuffix("\r\n") + "\n" if text.endswith("\r\n") else text


def _check_line_end(path: Path, line: bytes) -> None:
    """Raise DataError for a file that has CR where others have LF: it would be one row."""
    if not line.endswith(b"\n") and b"\r" in line:
        raise DataError(
            f"{path.name}: its lines end in CR alone.\n  expected: LF, or CR and LF\n"
            "  do: save the file with such line ends"
        )


READERS = {
    ".jsonl": _read_json,
    ".json": _read_json,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
    ".txt": _read_text,
}
