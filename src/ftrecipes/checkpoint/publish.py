"""The run folder: what it holds, and how a result gets into it whole.

Weights are written into a hidden folder beside their place, read back, compared, and only then
renamed; whatever an earlier run left stays until that moment. `run.json` says last that the result
is complete.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from ftrecipes.config.errors import CheckpointError

STAGING = ".saving"
# The files that make up a result; those of an earlier run that the new one does not replace are
# removed when the new one is published, because a loader would pick them up.
RESULT_PATTERNS = (
    "adapter_model.safetensors",
    "adapter_model.bin",
    "adapter_config.json",
    "model.safetensors",
    "model-*-of-*.safetensors",
    "model.safetensors.index.json",
    "pytorch_model*.bin",
    "pytorch_model.bin.index.json",
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)


def write_json(path: Path, content: dict) -> None:
    """Write `content` to `path` so that a reader sees the old file or the new one, never a part."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 `text` to `path` through a renamed neighbour, flushed to the disk."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(beside, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def publish(folder: Path, write: Callable[[Path], None], verify: Callable[[Path], None]) -> None:
    """Let `write` fill a new folder, `verify` read it back, then move its files into `folder`.

    Rank 0 only. `verify` raises CheckpointError when what it reads is not what was trained; nothing
    in `folder` has changed then. An operating-system error (disk full, read-only folder) and a file
    that can not be read back become a CheckpointError too.
    """
    staging = folder / STAGING
    shutil.rmtree(staging, ignore_errors=True)
    try:
        staging.mkdir(parents=True)
        write(staging)
        verify(staging)
        _flush(staging)
        _move(staging, folder)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"The result could not be written to {folder}.\n"
            f"  got: {error}\n"
            "  expected: a writable folder with enough free space\n"
            "  do: free some space or choose another --output_dir; an earlier result there was "
            "not touched"
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _flush(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())


def _move(staging: Path, folder: Path) -> None:
    new = sorted(path.name for path in staging.iterdir())
    for pattern in RESULT_PATTERNS:
        for stale in folder.glob(pattern):
            if stale.name not in new:
                stale.unlink()
    # Weights come last: a folder with weights then also has all that describes them.
    for name in sorted(new, key=lambda name: name.endswith(".safetensors")):
        target = folder / name
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(staging / name, target)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
