"""What the check said of rows kept beside them, so that the next run need not look again."""

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from ftrecipes.config.sections import DataConfig
from ftrecipes.data.cache import cache_path, put_whole
from ftrecipes.data.doctor import examine
from ftrecipes.data.findings import Finding, ShownToken
from ftrecipes.data.rows import RawRows, TokenRows
from ftrecipes.runtime import log

SUFFIX = ".findings"


def examine_cached(
    raw: RawRows,
    rows: TokenRows,
    tokenizer: PreTrainedTokenizerBase,
    *,
    data: DataConfig,
    context_length: int,
) -> list[Finding]:
    """`examine`, from the cache when the same rows were looked at before."""
    settings = {"data": data, "context_length": context_length}
    rows_path = cache_path(raw, tokenizer, **settings)
    path = rows_path and rows_path.with_suffix(SUFFIX)
    # The check of dialogs minds whether their template was asked for.
    key = [rows.facts.digest, data.chat_template]
    found = _load(path, key) if path else None
    if found is None:
        found = examine(raw, rows, tokenizer, **settings)
        if path:
            _store(path, key, found)
    return found


def _load(path: Path, key: list) -> list[Finding] | None:
    """The findings of an entry; None when there is no whole one for these rows."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        if said["key"] != key:
            return None
        return read_findings(said["findings"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        log.info(f"{path}: not a whole entry of the cache ({error}); made again")
        return None


def read_findings(said: list[dict]) -> list[Finding]:
    """Findings as asdict and JSON left them. Raises TypeError for what are none."""
    return [_finding(**one) for one in said]


def _finding(*, tokens: list, **said: str) -> Finding:
    return Finding(**said, tokens=tuple(ShownToken(*token) for token in tokens))


def _store(path: Path, key: list, found: list[Finding]) -> None:
    words = json.dumps({"key": key, "findings": [asdict(one) for one in found]})
    # What keeps them from the folder was told of the rows.
    with suppress(OSError), put_whole(path) as file:
        file.write(words.encode())
