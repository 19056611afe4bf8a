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
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path

import yaml

from ftrecipes import __version__
from ftrecipes.checkpoint.publish import write_json, write_text
from ftrecipes.checkpoint.together import first_does
from ftrecipes.config.errors import CheckpointError, ConfigError
from ftrecipes.config.run_files import LIVE, LOCK, RUN_RECORD, SETTINGS, TRAINED
from ftrecipes.runtime.collectives import gather_objects
from ftrecipes.runtime.world import World

PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "datasets", "tokenizers", "numpy")


class RunRecord:
    """The record of one run; every change of run.json is on the disk at once.

    Rank 0 writes, and holds the folder against other runs; the other ranks know where. `folder` is
    where run.json, run.yaml, metrics.jsonl and error.txt are written while it goes: the run folder,
    or a hidden folder in it as long as the run folder holds an earlier result, which must keep the
    record it was made with.
    """

    def __init__(self, run_folder: Path, content: dict, world: World):
        self._run_folder, self._content, self._world = run_folder, content, world
        self._held = ExitStack()
        self.folder = run_folder

    def start(self, settings: dict) -> None:
        """Take the folder, write run.yaml and the first run.json; clear what a broken run left.

        Called by all ranks. Raises ConfigError when another run is writing there, CheckpointError
        when the folder can not be written.
        """
        self.folder = first_does(partial(self._start, settings), self._world)

    def add(self, **entries: object) -> None:
        """Add or replace entries and write the file. Called by all ranks.

        Raises CheckpointError, on all of them, when that fails.
        """
        first_does(partial(self._note, **entries), self._world)

    def fail(self, error: Exception) -> None:
        """Note an error: its traceback goes to error.txt, whose path the exception carries.

        Waits for no other rank; of those other than 0 see `end`.
        """
        # First what is small, as the disk may be full.
        self.end("failed", error=str(error))
        if self._world.rank == 0:
            path = self.folder / "error.txt"
            write_text(path, traceback.format_exc())
            error.add_note(f"The traceback is in {path}")

    def end(self, status: str, **entries: object) -> None:
        """Note how the run ended, waiting for no other rank. Rank 0 does; when it has died, one of
        the others does for it."""
        entries |= {"status": status, "ended": now()}
        if self._world.rank == 0:
            self._note(**entries)
            return
        # The folder is held by rank 0 for as long as it lives.
        with suppress(ConfigError, OSError), _locked(self._run_folder):
            content = json.loads((self.folder / RUN_RECORD).read_text(encoding="utf-8"))
            if content["status"] == "running":
                self._content = content
                self._note(**entries)

    def settle(self) -> None:
        """The result is published: its record stands beside it. Called by all ranks."""
        first_does(self._move, self._world)
        self.folder = self._run_folder

    def close(self) -> None:
        """Let go of the folder."""
        self._held.close()

    def _start(self, settings: dict) -> Path:
        has_result = any(path for name in TRAINED for path in self._run_folder.glob(name))
        folder = self._run_folder / LIVE if has_result else self._run_folder
        try:
            self._run_folder.mkdir(parents=True, exist_ok=True)
            self._held.enter_context(_locked(self._run_folder))
            shutil.rmtree(self._run_folder / LIVE, ignore_errors=True)
            folder.mkdir(exist_ok=True)
            for name in ("error.txt", "metrics.jsonl"):
                (folder / name).unlink(missing_ok=True)
            write_text(folder / SETTINGS, yaml.safe_dump(settings, sort_keys=False))
            write_json(folder / RUN_RECORD, self._content)
        except OSError as error:
            self.close()
            raise CheckpointError(
                f"--output_dir {self._run_folder}: the folder can not be written.\n"
                f"  got: {error}\n"
                "  do: choose another folder"
            ) from error
        return folder

    def _note(self, **entries: object) -> None:
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

    def _move(self) -> None:
        if self.folder != self._run_folder:
            for path in self.folder.iterdir():
                os.replace(path, self._run_folder / path.name)
            self.folder.rmdir()


@contextmanager
def record_run(
    folder: Path, *, settings: dict, origins: dict[str, str], world: World
) -> Iterator[RunRecord]:
    """Create `folder` with run.yaml (`settings`) and run.json, and note there how the run ends.

    `status` goes from `running` to `finished`, `interrupted` or `failed`. Called by all ranks: rank
    0 writes. Raises ConfigError when another run is writing there, CheckpointError when the folder
    can not be written; on all ranks.
    """
    hosts = list(dict.fromkeys(gather_objects(world.host, world)))
    where = {"size": world.size, "device": str(world.device), "hosts": hosts}
    record = RunRecord(folder, _first_content(origins=origins, world=where), world)
    record.start(settings)
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
            record.end("interrupted")
        raise
    finally:
        record.close()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder for this process; the system lets go of it when the process ends."""
    with open(folder / LOCK, "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"--output_dir {folder}: another run is writing there.\n"
                "  do: choose another folder, or wait until that run has ended"
            ) from error
        try:
            yield
        finally:
            (folder / LOCK).unlink(missing_ok=True)


def _first_content(*, origins: dict[str, str], world: dict) -> dict:
    return {
        "status": "running",
        "started": now(),
        "versions": versions(),
        "world": world,
        "origins": origins,
    }


def versions() -> dict[str, str]:
    """Of ftrecipes, Python and the packages whose versions may change what a run computes."""
    own = {"ftrecipes": __version__, "python": platform.python_version()}
    return own | {name: version(name) for name in PACKAGES}


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
