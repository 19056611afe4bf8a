"""run.yaml and run.json: what the run was asked to do, with what, on what, and how it ended."""

import hashlib
import json
import platform
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import yaml

from ftrecipes import __version__
from ftrecipes.checkpoint.publish import write_json, write_text
from ftrecipes.config.errors import CheckpointError

PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "datasets", "tokenizers", "numpy")
ERROR_FILE = "error.txt"


class RunRecord:
    """run.json of one run; every change is on the disk at once. Rank 0 only."""

    def __init__(self, folder: Path, content: dict):
        self._path = folder / "run.json"
        self._content = content
        write_json(self._path, content)

    def add(self, **entries: object) -> None:
        """Add or replace entries and write the file."""
        self._content |= entries
        write_json(self._path, self._content)


@contextmanager
def record_run(
    folder: Path, *, settings: dict, origins: dict[str, str], world: dict
) -> Iterator[RunRecord]:
    """Create `folder` with run.yaml (`settings`) and run.json, and note there how the run ends.

    `status` goes from `running` to `finished`, `interrupted` or `failed`. The traceback of a
    failure is written to error.txt, and the exception carries its path as a note. Raises
    CheckpointError when the folder can not be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ERROR_FILE).unlink(missing_ok=True)
        write_text(folder / "run.yaml", yaml.safe_dump(settings, sort_keys=False))
        record = RunRecord(folder, _first_content(origins=origins, world=world))
    except OSError as error:
        raise CheckpointError(
            f"--output_dir {folder}: the folder can not be written.\n"
            f"  got: {error}\n"
            "  do: choose another folder"
        ) from error
    try:
        yield record
    except KeyboardInterrupt:
        record.add(status="interrupted", ended=_now())
        raise
    except Exception as error:
        write_text(folder / ERROR_FILE, traceback.format_exc())
        error.add_note(f"The traceback is in {folder / ERROR_FILE}")
        record.add(status="failed", ended=_now(), error=str(error))
        raise
    record.add(status="finished", ended=_now())


def _first_content(*, origins: dict[str, str], world: dict) -> dict:
    return {
        "status": "running",
        "started": _now(),
        "versions": {"ftrecipes": __version__, "python": platform.python_version()}
        | {name: version(name) for name in PACKAGES},
        "world": world,
        "origins": origins,
    }


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def fingerprint(*parts: object) -> str:
    """SHA-256 over byte buffers, texts and JSON values, in this order; 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for part in parts:
        if not isinstance(part, (bytes, memoryview)):
            part = json.dumps(part, sort_keys=True, default=str).encode()
        # The length separates parts, so that ("ab", "c") and ("a", "bc") differ.
        digest.update(str(len(part)).encode() + b":")
        digest.update(part)
    return digest.hexdigest()
