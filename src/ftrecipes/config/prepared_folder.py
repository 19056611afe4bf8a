"""The folder that `ftrecipes prepare` writes and `--dataset` takes, told by a file in it."""

import os
from collections.abc import Iterator
from pathlib import Path

from ftrecipes.config.faults import Fault, shown
from ftrecipes.config.mixing import is_mix, sets_of
from ftrecipes.config.schema import PrepareConfig, RunConfig

PREPARED = "prepared.json"


def is_prepared(path: str) -> bool:
    """Whether this is such a folder."""
    return os.path.isfile(os.path.join(path, PREPARED))


def check_prepared(config: RunConfig) -> Iterator[Fault]:
    """Faults of such folders among the data sets, and of `--to`."""
    folders = [one.name for one in sets_of(config) if one.name and is_prepared(one.name)]
    if folders and is_mix(config):
        what = f"--dataset {folders[0]}: prepared rows can not be in a list of data sets"
        yield Fault(what, do="list the sets when you prepare, or name this one", flags=("dataset",))
    if isinstance(config, PrepareConfig):
        if folders:
            what = f"--dataset {folders[0]}: is prepared already"
            yield Fault(what, do="name the rows that it was made of", flags=("dataset",))
        yield from _to(config.to)


def _to(value: str | None) -> Iterator[Fault]:
    label, flags = f"--to {shown(value or '')}", ("to",)
    expected = "a folder that is not there yet, an empty one, or an earlier one of these"
    if not value:
        yield Fault("--to: required", got="nothing", expected=expected, flags=flags)
        return
    folder = Path(value).expanduser().absolute()
    parent = next(path for path in folder.parents if os.path.exists(path))
    if os.path.lexists(folder) and not os.path.isdir(folder):
        yield Fault(f"{label}: no folder", got="a file", expected=expected, flags=flags)
    elif os.path.isdir(folder) and not is_prepared(str(folder)) and any(folder.iterdir()):
        what = f"{label}: holds other files"
        yield Fault(what, expected=expected, do="name another folder", flags=flags)
    elif not os.path.isdir(parent) or not os.access(parent, os.W_OK | os.X_OK):
        yield Fault(f"{label}: {parent} can not be written to", do="name another", flags=flags)
