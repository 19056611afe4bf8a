"""How a result gets into the run folder whole, or not at all.

It is written into a hidden folder inside the run folder, read back, compared, and only then moved;
whatever an earlier run left stays until that moment and comes back when moving fails. A result that
was written but could not be published is kept where it is, and the error says where.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

from ftrecipes.checkpoint.together import first_does
from ftrecipes.config.errors import CheckpointError
from ftrecipes.config.run_files import ASIDE, BEST_ASIDE, RESULT, STAGING
from ftrecipes.runtime import log
from ftrecipes.runtime.findings import comes_from_others
from ftrecipes.runtime.world import World


def write_json(path: Path, content: dict) -> None:
    """Write `content` to `path` so that a reader sees the old file or the new one, never a part."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 `text` to `path` through a renamed neighbour, flushed to the disk."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(beside, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError:
        beside.unlink(missing_ok=True)  # on a full disk others need its room
        raise


def publish(
    folder: Path,
    write: Callable[[Path], None],
    verify: Callable[[Path], None],
    *,
    world: World,
    keep: Collection[str] = (),
) -> None:
    """Let `write` fill a new folder, `verify` read it back, then move its files into `folder`.

    Of an earlier result nothing stays but the names in `keep`. Called by all ranks, and so are
    `write` and `verify`; the rest is done by rank 0. Raises CheckpointError on all ranks when
    something can not be written, is not what was trained, or can not be moved; `folder` then holds
    what it held before, and the new files are kept.
    """
    staging = _shared_staging(folder, world)
    is_whole = False

    def move() -> None:
        _flush(staging)
        _move(staging, folder, keep)
        for leftover in folder.glob(f"{STAGING}*"):
            shutil.rmtree(leftover, ignore_errors=True)

    try:
        write(staging)
        is_whole = True
        verify(staging)
        first_does(move, world)
    except Exception as error:
        if comes_from_others(error):
            _leave(staging, is_whole=is_whole, world=world)
            raise
        raise CheckpointError(
            f"The result could not be put into {folder}.\n"
            f"  got: {error or type(error).__name__}\n"
            f"  as it is now: {folder} is unchanged; what was written of the new result is in "
            f"{staging}\n"
            "  do: make that folder writable and its disk large enough; the files of a whole "
            "result can be moved up by hand"
        ) from error


def publish_folder(
    folder: Path, write: Callable[[Path], None], verify: Callable[[Path], None], *, world: World
) -> None:
    """Let `write` fill a new folder, `verify` read it back, then put it in the place of `folder`.

    Called by all ranks, as `publish` is. Raises CheckpointError on all ranks when that fails;
    `folder` is then what it was, and nothing is left of the new one, which would take the room of
    what is saved later.
    """
    staging = _shared_staging(folder.parent, world)
    new = staging / folder.name
    try:
        first_does(new.mkdir, world)
        write(new)
        verify(new)
        first_does(lambda: _exchange(new, folder), world)
    except Exception as error:
        if comes_from_others(error):
            raise
        raise CheckpointError(
            f"{folder} could not be written.\n  got: {error or type(error).__name__}\n"
            "  do: make its disk large enough and the folder around it writable"
        ) from error
    finally:
        if world.rank == 0:
            shutil.rmtree(staging, ignore_errors=True)


def rehearse(folder: Path, write: Callable[[Path], None], *, needed_bytes: int) -> None:
    """Find out before training what would keep a result from being saved after it.

    `write` fills a folder with the small files; it is removed again. Raises CheckpointError when
    that fails or fewer than `needed_bytes` are free. Rank 0 only.
    """
    staging = _new_staging(folder)
    try:
        write(staging)
        free = shutil.disk_usage(folder).free
    except Exception as error:
        raise CheckpointError(
            f"A result could not be saved in {folder}.\n  got: {error or type(error).__name__}\n"
            "  do: choose another --output_dir"
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    if free < needed_bytes:
        raise CheckpointError(
            f"The disk of {folder} is too full for the result.\n"
            f"  got: {free / 1e6:.1f} MB free\n  expected: {needed_bytes / 1e6:.1f} MB\n"
            "  do: free some space or choose another --output_dir"
        )


def _new_staging(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=STAGING, dir=folder))
    except OSError as error:
        raise CheckpointError(
            f"{folder} can not be written to.\n  got: {error}\n"
            "  do: make it writable, or choose another --output_dir"
        ) from error


def _shared_staging(folder: Path, world: World) -> Path:
    """The same new folder on all ranks; gone again when they end before they know of it."""
    made = []

    def make() -> Path:
        made.append(_new_staging(folder))
        return made[0]

    try:
        return first_does(make, world)
    except BaseException:
        for path in made:
            path.rmdir()
        raise


def _leave(staging: Path, *, is_whole: bool, world: World) -> None:
    """Other ranks ended before the result was published: keep of it what may be of use."""
    if world.rank > 0 or not staging.exists():
        return
    if is_whole:
        log.warning(
            f"All files of the new result are in {staging}, but the processes ended before each "
            "could compare its share with them. They can be moved up by hand."
        )
    else:
        shutil.rmtree(staging, ignore_errors=True)


def flush(path: Path) -> None:
    """Wait until the file is on the disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _flush(folder: Path) -> None:
    for path in filter(Path.is_file, folder.rglob("*")):
        flush(path)


def _exchange(new: Path, folder: Path) -> None:
    """Put `new` in the place of `folder`, which comes back when that fails."""
    _flush(new)
    aside = folder.with_name(BEST_ASIDE)
    shutil.rmtree(aside, ignore_errors=True)
    replaces = folder.exists()
    if replaces:
        os.replace(folder, aside)
    try:
        os.replace(new, folder)
    except OSError:
        if replaces:
            os.replace(aside, folder)
        raise
    _flush_names(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _move(staging: Path, folder: Path, keep: Collection[str]) -> None:
    """Move every file of `staging` into `folder`, and what it replaces out of the way."""
    aside = folder / ASIDE
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    new = [path.name for path in staging.iterdir()]
    stale = {path.name for pattern in RESULT for path in folder.glob(pattern)} - set(keep)
    replaced = [name for name in sorted(stale | set(new)) if (folder / name).exists()]
    # Weights come last: a folder with weights then also has all that describes them.
    steps = [(folder / name, aside / name) for name in replaced]
    steps += [
        (staging / name, folder / name)
        for name in sorted(new, key=lambda name: (name.endswith(".safetensors"), name))
    ]
    done: list[tuple[Path, Path]] = []
    try:
        for source, target in steps:
            os.replace(source, target)
            done.append((source, target))
    except OSError:
        for source, target in reversed(done):
            os.replace(target, source)
        aside.rmdir()
        raise
    shutil.rmtree(aside, ignore_errors=True)
    _flush_names(folder)


def _flush_names(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
