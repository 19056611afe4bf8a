"""run.yaml and run.json: what the run was asked to do, with what, on what, and how it ended."""

import fcntl
import hashlib
import json
import os
import platform
import shutil
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import IO

import yaml

from ftrecipes import __version__
from ftrecipes.checkpoint.publish import write_json, write_text
from ftrecipes.config.errors import CheckpointError, ConfigError
from ftrecipes.config.run_files import LIVE, LOCK, RUN_RECORD, TRAINED

PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "datasets", "tokenizers", "numpy")


class RunRecord:
    """The record of one run; every change of run.json is on the disk at once. Rank 0 only.

    `folder` is where run.json, run.yaml, metrics.jsonl and error.txt are written while it goes: the
    run folder, or a hidden folder in it as long as the run folder holds an earlier result, which
    must keep the record it was made with.
    """

    def __init__(self, run_folder: Path, content: dict):
        has_result = any(path for name in TRAINED for path in run_folder.glob(name))
        self._run_folder = run_folder
        self.folder = run_folder / LIVE if has_result else run_folder
        self._content = content

    def start(self, settings: dict) -> None:
        """Write run.yaml and the first run.json; clear what a broken run left."""
        shutil.rmtree(self._run_folder / LIVE, ignore_errors=True)
        self.folder.mkdir(exist_ok=True)
        for name in ("error.txt", "metrics.jsonl"):
            (self.folder / name).unlink(missing_ok=True)
        write_text(self.folder / "run.yaml", yaml.safe_dump(settings, sort_keys=False))
        self.add()

    def add(self, **entries: object) -> None:
        """Add or replace entries and write the file. Raises CheckpointError when that fails."""
        self._content |= entries
        path = self.folder / RUN_RECORD
        try:
            write_json(path, self._content)
        except OSError as error:
            raise CheckpointError(
                f"{path} could not be written.\n  got: {error}\n"
                "  do: make its disk large enough and its folder writable; weights that the log "
                "says are saved are whole"
            ) from error

    def fail(self, error: Exception) -> None:
        """Note an error: its traceback goes to error.txt, whose path the exception carries."""
        # First what is small, as the disk may be full.
        self.add(status="failed", ended=now(), error=str(error))
        path = self.folder / "error.txt"
        write_text(path, traceback.format_exc())
        error.add_note(f"The traceback is in {path}")

    def settle(self) -> None:
        """The result is published: its record stands beside it."""
        if self.folder != self._run_folder:
            for path in self.folder.iterdir():
                os.replace(path, self._run_folder / path.name)
            self.folder.rmdir()
            self.folder = self._run_folder


@contextmanager
def record_run(
    folder: Path, *, settings: dict, origins: dict[str, str], world: dict
) -> Iterator[RunRecord]:
    """Create `folder` with run.yaml (`settings`) and run.json, and note there how the run ends.

    `status` goes from `running` to `finished`, `interrupted` or `failed`. Raises ConfigError when
    another run is writing there, CheckpointError when the folder can not be written.
    """
    record = RunRecord(folder, _first_content(origins=origins, world=world))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock(folder)
        record.start(settings)
    except OSError as error:
        raise CheckpointError(
            f"--output_dir {folder}: the folder can not be written.\n"
            f"  got: {error}\n"
            "  do: choose another folder"
        ) from error
    try:
        yield record
        record.add(status="finished", ended=now())
    except Exception as error:
        # A full disk must not put its own error in the place of the first.
        with suppress(OSError, CheckpointError):
            record.fail(error)
        raise
    except BaseException:
        with suppress(CheckpointError):
            record.add(status="interrupted", ended=now())
        raise
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        lock.close()


def _lock(folder: Path) -> IO:
    """Hold the folder for this process; the system lets go of it when the process ends."""
    file = open(folder / LOCK, "w", encoding="utf-8")  # noqa: SIM115  open as long as the run
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise ConfigError(
            f"--output_dir {folder}: another run is writing there.\n"
            "  do: choose another folder, or wait until that run has ended"
        ) from error
    return file


def _first_content(*, origins: dict[str, str], world: dict) -> dict:
    return {
        "status": "running",
        "started": now(),
        "versions": {"ftrecipes": __version__, "python": platform.python_version()}
        | {name: version(name) for name in PACKAGES},
        "world": world,
        "origins": origins,
    }


def now() -> str:
    """This moment, with the offset from UTC."""
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
