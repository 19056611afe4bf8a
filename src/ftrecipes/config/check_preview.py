"""The flags of `ftrecipes preview` itself: which rows, and where the page goes."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from ftrecipes.config.faults import Fault, idle, out_of_range, shown
from ftrecipes.config.flags import asked
from ftrecipes.config.schema import PreviewConfig

PAGE_MARK = '<meta name="generator" content="ftrecipes preview">'
"""Stands at the top of each page, so that an earlier one may be replaced."""
_TOP_BYTES = 200


def check_preview(config: PreviewConfig) -> Iterator[Fault]:
    """Faults of --rows, --row and --html."""
    if config.row is not None and asked(config, "rows"):
        yield idle(["rows"], "--row shows that one alone", "row")
    if config.row is not None and re.fullmatch("-[0-9]+|0+", config.row):
        yield out_of_range("row", config.row, "1 or more, or the name of a row")
    if config.html is not None:
        yield from _page(config.html)


def _page(value: str) -> Iterator[Fault]:
    label, flags, folder = f"--html {shown(value)}", ("html",), Path(value).absolute().parent
    expected = "a file that is not there yet, or an earlier preview"
    if not value or os.path.isdir(value):
        yield Fault(
            f"{label}: no file", got="a folder" if value else "", expected=expected, flags=flags
        )
    elif not os.path.isdir(folder):
        do = "make it, or name another file"
        yield Fault(f"{label}: there is no folder {folder}", do=do, flags=flags)
    elif os.path.lexists(value) and not _is_page(value):
        do = "name another file, or remove this one"
        yield Fault(
            f"{label}: is there already, and is no preview", expected=expected, do=do, flags=flags
        )
    elif not os.access(value if os.path.exists(value) else folder, os.W_OK):
        yield Fault(f"{label}: can not be written to", do="name another file", flags=flags)


def _is_page(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return PAGE_MARK.encode() in file.read(_TOP_BYTES)
    except OSError:
        return False
