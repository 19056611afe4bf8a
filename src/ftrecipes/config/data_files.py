"""The data files that a setting names: one file, those of a folder, or those of a glob."""

import glob
import os
import re
from pathlib import Path

PACKINGS = (".gz", ".zst")
KINDS = (".jsonl", ".json", ".csv", ".parquet", ".txt")
# Parquet packs its columns itself.
DATA_SUFFIXES = (*KINDS, *(f"{k}{p}" for k in KINDS if k != ".parquet" for p in PACKINGS))
DATA_KINDS = f"{', '.join(KINDS)} (all but .parquet also packed: {' or '.join(PACKINGS)} behind)"
# Words in file names that say which part of a data set they hold.
PARTS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev", "eval"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}


def is_glob(value: str) -> bool:
    """Whether `value` is a pattern of names. A path that exists is taken as it stands."""
    return bool(re.search(r"[*?\[]", value)) and not os.path.exists(value)


def find_data_files(value: str) -> list[Path]:
    """The files that `value` names, sorted; empty when there is none.

    A file is returned whatever it is. Of a folder (not of the folders in it) and of a glob, hidden
    files and those of other kinds are passed over.
    """
    if os.path.isfile(value):
        return [Path(value)]
    if os.path.isdir(value):
        pattern = os.path.join(glob.escape(value), "*")
    elif is_glob(value):
        pattern = value
    else:
        return []
    found = (path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path))
    return sorted(Path(path) for path in found if path.lower().endswith(DATA_SUFFIXES))


def plain_name(name: str) -> str:
    """The name of a file once it is unpacked: `rows.jsonl` of `rows.jsonl.gz`."""
    packing = next((packing for packing in PACKINGS if name.lower().endswith(packing)), "")
    return name[: len(name) - len(packing)]


def parts_of(files: list[Path]) -> dict[str, str]:
    """Part of a data set (train, validation, test) -> the first file whose name says so."""
    parts: dict[str, str] = {}
    for file in files:
        words = re.split(r"[^a-z]+", file.stem.lower())
        part = next((PARTS[word] for word in words if word in PARTS), None)
        if part is not None:
            parts.setdefault(part, file.name)
    return parts
