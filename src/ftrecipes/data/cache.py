"""Tokenised rows kept on disk, so that the next run with the same data starts at once.

An entry is one file: arrays one behind another as numpy.save writes them, the last one the words
about the rows, and a hash of all that, which tells damage and not intent (XXH3). Its name is a hash
of everything that the rows depend on, so that an entry is never out of date; it is put in place
whole, so that any number of runs may share the folder.
"""

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO

import numpy as np
import xxhash
from numpy.lib import format as npy
from transformers import PreTrainedTokenizerBase

from ftrecipes.config.sections import DataConfig
from ftrecipes.data.facts import Facts
from ftrecipes.data.rows import Intake, RawRows, TokenRows
from ftrecipes.data.tokenize import tokenize_rows
from ftrecipes.runtime import log
from ftrecipes.runtime.user_cache import user_cache

SUFFIX = ".rows"
UNFINISHED = ".part"
HASH_BYTES = xxhash.xxh3_128().digest_size
NUM_ARRAYS = 6
KEPT_SECONDS = 30 * 24 * 3600
KEPT_BYTES = 20 * 2**30
# What of DataConfig changes the rows.
# The chat template is in the key with the tokenizer that it is given to.
SETTINGS = ("format", "columns", "truncation", "on_bad_row", "train_on")
PACKAGES = ("transformers", "tokenizers", "jinja2", "numpy")


def tokenize_cached(
    raw: RawRows, tokenizer: PreTrainedTokenizerBase, *, data: DataConfig, context_length: int
) -> TokenRows:
    """`tokenize_rows`, from the cache when it has these rows; else they are put there.

    A cache that can not be read or written costs a line in the log and nothing else.
    """
    path = cache_path(raw, tokenizer, data=data, context_length=context_length)
    if path is None:
        return tokenize_rows(raw, tokenizer, data=data, context_length=context_length)
    rows = _load(path)
    if rows is not None:
        log.info(f"{raw.name}: {len(rows)} tokenised rows taken from the cache {path}")
        return rows
    rows = tokenize_rows(raw, tokenizer, data=data, context_length=context_length)
    try:
        store_rows(path, rows)
        _tidy(path.parent)
    except OSError as error:
        log.info(f"{path.parent}: the tokenised rows can not be kept there ({error.strerror})")
        return rows
    # Mapped from the file now, so that the memory they took is free again.
    return _load(path) or rows


def cache_path(
    raw: RawRows, tokenizer: PreTrainedTokenizerBase, *, data: DataConfig, context_length: int
) -> Path | None:
    """The entry of these rows, whether it is there or not; None where nothing is to be kept."""
    folder = cache_folder() if data.cache else None
    if folder is None:
        return None
    name = _entry_name(raw, tokenizer, data=data, context_length=context_length)
    return name and folder / f"{name}{SUFFIX}"


def cache_folder() -> Path | None:
    """The folder of the entries; None where the user has no cache."""
    root = user_cache()
    return None if root is None else root / "rows"


def _entry_name(
    raw: RawRows, tokenizer: PreTrainedTokenizerBase, *, data: DataConfig, context_length: int
) -> str | None:
    """A hash of all that the rows depend on; None when something of that can not be known."""
    is_stock = type(tokenizer).__module__.partition(".")[0] == "transformers"
    if raw.fingerprint is None or not tokenizer.is_fast or not is_stock:
        return None
    settings = asdict(data)
    # Templates of Llama 3 and others write the date.
    has_date = "strftime_now" in str(tokenizer.chat_template)
    parts = {
        "rows": [raw.name, raw.fingerprint],
        "settings": [context_length, *(settings[name] for name in SETTINGS)],
        "tokenizer": tokenizer_parts(tokenizer),
        "date": time.strftime("%Y-%m-%d") if has_date else "",
        "versions": {package: version(package) for package in PACKAGES},
        "code": _code_hash(),
    }
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def tokenizer_parts(tokenizer: PreTrainedTokenizerBase) -> dict[str, object]:
    """All of a fast tokenizer that rows depend on."""
    return {
        "class": type(tokenizer).__qualname__,
        "vocabulary": tokenizer.backend_tokenizer.to_str(),
        "special_tokens": [tokenizer.special_tokens_map, tokenizer.split_special_tokens],
        "chat_template": tokenizer.chat_template,
    }


def _code_hash() -> str:
    """Of this package's sources, so that a change of the code never meets older rows."""
    digest = hashlib.sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


def load_rows(path: Path) -> TokenRows:
    """The rows of an entry, mapped and not read.

    Raises OSError, and ValueError for one that is damaged.
    """
    with path.open("rb") as file:
        content = np.memmap(file, dtype=np.uint8, mode="r")
        if content[-HASH_BYTES:].tobytes() != xxhash.xxh3_128_digest(content[:-HASH_BYTES]):
            raise ValueError("its content has changed")
        file.seek(0)
        offsets, input_ids, labels, token_counts, used_ids, words = _arrays(file)
    said = json.loads(words.tobytes())
    intake = Intake(**said["intake"])
    return TokenRows(
        *(input_ids, labels, offsets, said["sources"], said["report"]),
        intake=intake,
        known=Facts(token_counts, used_ids, said["digest"]),
    )


def _load(path: Path) -> TokenRows | None:
    """The rows of an entry; None when there is no whole one."""
    try:
        rows = load_rows(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.info(f"{path}: not a whole entry of the cache ({error}); made again")
        return None
    with suppress(OSError):  # the folder may be another user's
        os.utime(path)  # it is in use; see _tidy
    return rows


def _arrays(file: BinaryIO) -> Iterator[np.ndarray]:
    for _ in range(NUM_ARRAYS):
        npy.read_magic(file)
        shape, _, dtype = npy.read_array_header_1_0(file)
        start = file.tell()
        array = np.memmap(file, dtype=dtype, mode="r", offset=start, shape=shape)
        file.seek(start + array.nbytes)
        yield array


@contextmanager
def put_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which becomes `path` when all of it is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(dir=path.parent, suffix=UNFINISHED)
    try:
        with open(handle, "w+b") as file:
            yield file
        os.replace(unfinished, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise


def store_rows(path: Path, rows: TokenRows) -> None:
    """Write an entry: rows whose arrays are no chains. Raises OSError."""
    facts = rows.facts
    said = {
        "sources": list(rows.sources),
        "report": rows.report,
        "intake": asdict(rows.intake),
        "digest": facts.digest,
    }
    words = np.frombuffer(json.dumps(said).encode(), dtype=np.uint8)
    with put_whole(path) as file:
        tokens = (rows.offsets, rows.input_ids, rows.labels)
        for array in (*tokens, facts.token_counts, facts.used_ids, words):
            npy.write_array(file, array, version=(1, 0), allow_pickle=False)
        file.flush()
        content = np.memmap(file, dtype=np.uint8, mode="r")
        file.seek(0, os.SEEK_END)
        file.write(xxhash.xxh3_128_digest(content))


def _tidy(folder: Path) -> None:
    """Remove what was long not used, and the longest unused of what is too much."""
    entries = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another run tidies too
            entries.append((path.stat(), path))
    used_bytes = 0
    for status, path in sorted(entries, key=lambda entry: -entry[0].st_mtime):
        used_bytes += status.st_size
        if used_bytes > KEPT_BYTES or time.time() - status.st_mtime > KEPT_SECONDS:
            path.unlink(missing_ok=True)
