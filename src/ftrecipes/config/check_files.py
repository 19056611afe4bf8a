"""The data files that settings name, checked before anything heavy is imported.

os.path and not pathlib asks whether something exists: a name too long, or a folder that may not be
looked into, is then simply absent.
"""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from ftrecipes.config.data_files import (
    DATA_KINDS,
    DATA_SUFFIXES,
    find_data_files,
    is_glob,
    parts_of,
)
from ftrecipes.config.faults import Fault, shown
from ftrecipes.config.names import close
from ftrecipes.config.urls import DRIVERS, bare, is_url, last_name, scheme_of


def data_files(name: str, value: str | None) -> Iterator[Fault]:
    """Faults of a setting that names one file, a folder, a glob or a URL."""
    if value is None:
        return
    if is_url(value):
        yield from _url(name, value)
        return
    label, kinds, flags = f"--{name} {shown(value)}", DATA_KINDS, (name,)
    is_folder = os.path.isdir(value)
    if not is_folder and not os.path.exists(value) and not is_glob(value):
        yield absent(name, value, f"a file, or a folder or glob of files, of the kinds {kinds}")
    elif is_folder and not os.access(value, os.R_OK | os.X_OK):
        do = "check its permissions"
        yield Fault(f"{label}: this folder can not be looked into", do=do, flags=flags)
    elif os.path.exists(value) and not is_folder and not os.path.isfile(value):
        do = "write the rows to a file; they are read more than once"
        yield Fault(f"{label}: neither a file nor a folder", do=do, flags=flags)
    elif not (files := find_data_files(value)):
        what = "this folder holds no data files" if is_folder else "matches no data file"
        yield Fault(f"{label}: {what}", expected=f"files of the kinds {kinds}", flags=flags)
    elif not files[0].name.lower().endswith(DATA_SUFFIXES):
        got = "".join(files[0].suffixes[-2:]) or "no suffix"
        what = f"{label}: not a kind of file that is read"
        yield Fault(what, got=got, expected=f"one of {kinds}", flags=flags)
    elif is_folder and len(parts := parts_of(files)) > 1:
        # Else validation rows would be trained on without a word.
        yield Fault(
            f"{label}: its files are different parts of a data set",
            got=", ".join(f"{file} ({part})" for part, file in parts.items()),
            do="name the files: --dataset for training, --data.val_file for validation (a glob "
            "takes all that it matches)",
            flags=flags,
        )


def _url(name: str, value: str) -> Iterator[Fault]:
    """Whether it can be reached is known when it is read."""
    label = f"--{name} {shown(bare(value))}"
    module, package = DRIVERS.get(scheme_of(value), ("", ""))
    if not last_name(value).lower().endswith(DATA_SUFFIXES):
        expected = f"a URL that ends in the name of a file of one of the kinds {DATA_KINDS}"
        do = "name the file, or a data set of the hub by its id (owner/name)"
        yield Fault(f"{label}: names no file of rows", expected=expected, do=do, flags=(name,))
    elif module and importlib.util.find_spec(module) is None:
        do = f"install it (pip install {package}), or copy the file here and name that"
        what = f"{label}: {scheme_of(value)}:// needs the package {package}"
        yield Fault(what, do=do, flags=(name,))


def absent(name: str, value: str, expected: str) -> Fault:
    """A path that does not exist, with the most alike name in its folder."""
    folder = Path(value).absolute().parent
    do = ""
    if os.path.islink(value):
        do = f"mend the link: it leads to {os.readlink(value)}"
    elif not os.path.isdir(folder):
        do = f"there is no folder {folder} either"
    elif os.access(folder, os.R_OK):
        near = close(Path(value).name, os.listdir(folder))
        do = f"did you mean {Path(value).parent / near}?" if near else ""
    what = f"--{name} {shown(value)}: does not exist"
    return Fault(what, expected=expected, do=do, flags=(name,))
