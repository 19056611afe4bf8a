"""Files of other machines, copied here through fsspec to be read as local ones."""

import re
from pathlib import Path

from ftrecipes.config.data_files import DATA_SUFFIXES
from ftrecipes.config.errors import DataError
from ftrecipes.config.urls import bare, scheme_of
from ftrecipes.runtime import log


def fetch(url: str, folder: Path) -> list[Path]:
    """Copies in `folder` of the file that `url` names, or of those that its `*` stands for, sorted.

    Folders between the files stay, so that names stay different. Raises DataError with what the
    driver says: none is installed, no such file, no permission, no network.
    """
    place = bare(url)
    try:
        return _copies(url, folder)
    except DataError:
        raise
    except ImportError as error:
        raise DataError(
            f"{place}: nothing that is installed reads {scheme_of(url)}://.\n  got: {error}\n"
            "  do: install what it names, or copy the file here and name that"
        ) from error
    except Exception as error:  # drivers raise what their own libraries do
        raise DataError(
            f"{place}: can not be fetched.\n  got: {type(error).__name__}: {_said(error)}\n"
            "  do: check the address, your credentials and the network, or copy the file here"
        ) from error


def _copies(url: str, folder: Path) -> list[Path]:
    from fsspec.core import url_to_fs  # takes a moment, and local files do without it

    files, path = url_to_fs(url)
    found = sorted(files.glob(path)) if "*" in path else [path]
    found = [name for name in found if _name(name).lower().endswith(DATA_SUFFIXES)]
    if not found:
        raise DataError(f"{bare(url)}: matches no data file.\n  do: check the address")
    log.info(f"{bare(url)}: fetching {len(found)} file{'s' * (len(found) > 1)}")
    base = bare(path).partition("*")[0].rpartition("/")[0]
    copies = []
    for name in found:
        parts = bare(name).removeprefix(base).split("/")
        copy = folder.joinpath(*(part for part in parts if part not in ("", ".", "..")))
        copy.parent.mkdir(parents=True, exist_ok=True)
        files.get_file(name, str(copy))
        copies.append(copy)
    return copies


def _name(path: str) -> str:
    return bare(path).rpartition("/")[2]


def _said(error: Exception) -> str:
    """What an error says, its URLs without what may be secret."""
    return re.sub(r"\bhttps?://[^\s'\")]+", lambda found: bare(found[0]), str(error))
