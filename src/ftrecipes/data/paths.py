"""What a path names to raw rows: a file, the files of a folder, of a glob, or of a URL."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from ftrecipes.config.data_files import DATA_KINDS, find_data_files, is_glob
from ftrecipes.config.errors import DataError
from ftrecipes.config.urls import bare, is_url
from ftrecipes.data.chain import ChainedRows
from ftrecipes.data.files import read_file
from ftrecipes.data.remote import fetch
from ftrecipes.data.row_names import join_names
from ftrecipes.data.rows import RawRows


def read_paths(value: str) -> RawRows:
    """The rows of every file that `value` names, file by file, each row named by its own file.

    The files may be of several kinds; those of a URL are copied here, and the copies are removed
    once they are read. Raises DataError with the faults of all files together, for files without a
    column in common, for a folder or glob without data files, and for what can not be fetched.
    """
    if is_url(value):
        with TemporaryDirectory(prefix="ftrecipes-") as folder:
            return _read_found(fetch(value, Path(folder)), name=bare(value))
    value = os.path.expanduser(value)
    files = find_data_files(value)
    if not files and (os.path.isdir(value) or is_glob(value)):
        raise DataError(
            f"{value}: there are no data files.\n  expected: files ending in {DATA_KINDS}"
        )
    return _read_found(files or [Path(value)], name=value)


def _read_found(files: Sequence[Path], *, name: str) -> RawRows:
    if len(files) == 1:
        return read_file(files[0])
    parts = _read_all(files)
    _check_columns(parts)
    return RawRows(
        rows=ChainedRows([part.rows for part in parts]),
        columns=list(dict.fromkeys(column for part in parts for column in part.columns)),
        name=name,
        sources=join_names([part.sources for part in parts]),
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
        sources = part.sources.renamed(partial(_called, old=part.name, new=name))
        parts.append(replace(part, name=name, sources=sources))
    if faults:
        raise DataError("\n\n".join(map(str, faults))) from faults[0]
    return parts


def _called(label: str, *, old: str, new: str) -> str:
    return new + label.removeprefix(old)


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
