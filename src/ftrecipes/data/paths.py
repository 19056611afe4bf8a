"""What a path names to raw rows: one file, the files of a folder, or those that a glob matches."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ftrecipes.config.data_files import DATA_SUFFIXES, find_data_files, is_glob
from ftrecipes.config.errors import DataError
from ftrecipes.data.files import read_file
from ftrecipes.data.rows import RawRows


def read_paths(value: str) -> RawRows:
    """The rows of every file that `value` names, file by file, each row named by its own file.

    The files may be of several kinds. Raises DataError with the faults of all files together, for
    files without a column in common, and for a folder or glob without data files.
    """
    value = os.path.expanduser(value)
    files = find_data_files(value)
    if not files and (os.path.isdir(value) or is_glob(value)):
        raise DataError(
            f"{value}: there are no data files.\n  expected: files ending in "
            f"{', '.join(DATA_SUFFIXES)}"
        )
    if len(files) < 2:
        return read_file(value if not files else files[0])
    parts = _read_all(files)
    _check_columns(parts)
    return RawRows(
        rows=[row for part in parts for row in part.rows],
        columns=list(dict.fromkeys(column for part in parts for column in part.columns)),
        name=value,
        sources=[source for part in parts for source in part.sources],
        fingerprint=_joined_fingerprint(parts),
    )


def _read_all(files: Sequence[Path]) -> list[RawRows]:
    """The rows of each file, under names that tell the files apart."""
    parts, faults = [], []
    for file, name in zip(files, _names(files), strict=True):
        try:
            part = read_file(file)
        except DataError as fault:
            faults.append(fault)
            continue
        sources = [name + source.removeprefix(part.name) for source in part.sources]
        parts.append(replace(part, name=name, sources=sources))
    if faults:
        raise DataError("\n\n".join(map(str, faults))) from faults[0]
    return parts


def _names(files: Sequence[Path]) -> list[str]:
    """File names, with their folders where two files have one name."""
    names = [file.name for file in files]
    if len(set(names)) == len(names):
        return names
    common = os.path.commonpath([file.parent for file in files])
    return [os.path.relpath(file, common) for file in files]


def _check_columns(parts: Sequence[RawRows]) -> None:
    filled = [part for part in parts if part.columns]
    for part in filled:
        if set(part.columns).isdisjoint(filled[0].columns):
            found = "".join(
                f"\n  {one.name}: {', '.join(map(str, one.columns))}" for one in (filled[0], part)
            )
            raise DataError(
                f"The files do not hold the same kind of rows; their columns are{found}\n"
                "  do: name files of one kind"
            )


def _joined_fingerprint(parts: Sequence[RawRows]) -> str | None:
    found = [f"{part.name} {part.fingerprint}" for part in parts if part.fingerprint]
    if len(found) < len(parts):
        return None
    return hashlib.sha256("\n".join(found).encode(errors="surrogateescape")).hexdigest()
