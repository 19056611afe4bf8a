"""Rows that `ftrecipes prepare` tokenised, in a folder of their own for any number of runs.

The folder holds an entry as the cache has it for each data set of each split, and prepared.json:
what the rows depend on, what is to be said of them, and what the check found.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from ftrecipes.config.errors import DataError
from ftrecipes.config.flags import asked, value_of
from ftrecipes.config.mixing import dataset_words
from ftrecipes.config.prepared_folder import PREPARED
from ftrecipes.config.schema import RunConfig
from ftrecipes.data.cache import SUFFIX, load_rows, store_rows, tokenizer_parts
from ftrecipes.data.findings import Finding
from ftrecipes.data.findings_cache import read_findings
from ftrecipes.data.rows import RowSet, TokenRows
from ftrecipes.data.sets import join_rows, rows_by_set

FORMAT = 1
SETTLING = ("context_length", "data.train_on", "data.truncation", "data.on_bad_row")
"""Options that the rows of any run depend on."""
READING = (
    *("data.format", "data.columns", "data.train_file", "data.train_split"),
    *("data.val_file", "data.val_split", "data.val_fraction"),
)
"""Options that say what was read; a run that does not name them takes the rows as they are."""


def write_prepared(
    config: RunConfig,
    tokenizer: PreTrainedTokenizerBase,
    splits: dict[str, TokenRows],
    findings: list[Finding],
    *,
    folder: Path,
) -> None:
    """Put the rows of a run into `folder`, in place of earlier prepared ones, whole or not at all.

    Raises OSError, with whatever was there left as it was.
    """
    folder = folder.expanduser().absolute()
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    unfinished.mkdir(parents=True)
    try:
        said = {
            "format": FORMAT,
            "dataset": dataset_words(config),
            "options": {name: value_of(config, name) for name in (*SETTLING, *READING)},
            "tokenizer": _identity(tokenizer),
            "splits": {name: _write(unfinished, name, rows) for name, rows in splits.items()},
            "findings": [asdict(one) for one in findings],
        }
        (unfinished / PREPARED).write_text(json.dumps(said, indent=1), encoding="utf-8")
        for file in unfinished.glob(f"*{SUFFIX}"):
            # An entry of the cache is its user's own; these are for whoever may read the folder.
            shutil.copymode(unfinished / PREPARED, file)
        earlier = unfinished.with_suffix(".earlier")
        if folder.exists():
            os.rename(folder, earlier)
        os.rename(unfinished, folder)
        shutil.rmtree(earlier, ignore_errors=True)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def read_prepared(
    config: RunConfig, tokenizer: PreTrainedTokenizerBase
) -> tuple[dict[str, TokenRows], list[Finding]]:
    """The rows of each split in the folder that `--dataset` names, mapped, and what was found.

    Raises DataError naming each option that differs from those of the folder, and for a folder
    that is damaged.
    """
    folder = Path(config.train.dataset).expanduser()
    try:
        said = json.loads((folder / PREPARED).read_text(encoding="utf-8"))
        if said["format"] != FORMAT:
            raise ValueError(f"its format is {said['format']}, not {FORMAT}")
        _refuse_others(config, tokenizer, said, folder)
        wanted = {
            name: one
            for name, one in said["splits"].items()
            if name == "train" or config.train.run_validation
        }
        splits = {name: _read(folder, one) for name, one in wanted.items()}
        return splits, read_findings(said["findings"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"--dataset {folder}: not a whole folder of prepared rows.\n"
            f"  got: {type(error).__name__}: {error}\n"
            "  do: make it again with ftrecipes prepare"
        ) from error


def _write(folder: Path, split: str, rows: TokenRows) -> dict:
    sets = []
    for number, (one, own) in enumerate(rows_by_set(rows)):
        file = f"{split}-{number}{SUFFIX}"
        store_rows(folder / file, own)
        sets.append({"file": file, "name": one.name, "weight": one.weight})
    return {"sets": sets, "is_mix": bool(rows.sets), "report": rows.report}


def _read(folder: Path, said: dict) -> TokenRows:
    found = [load_rows(folder / one["file"]) for one in said["sets"]]
    if not said["is_mix"]:
        return replace(found[0], report=said["report"])
    sets = [RowSet(one["name"], 0, one["weight"]) for one in said["sets"]]
    return replace(join_rows(sets, found), report=said["report"])


def _refuse_others(
    config: RunConfig, tokenizer: PreTrainedTokenizerBase, said: dict, folder: Path
) -> None:
    lines = [*_other_options(config, said["options"]), *_other_words(tokenizer, said["tokenizer"])]
    if lines:
        raise DataError(
            f"--dataset {folder}: the rows were prepared in another way.\n"
            + "".join(f"  {line}\n" for line in lines)
            + "  do: give this run the options of the folder, or prepare the rows again"
        )


def _other_options(config: RunConfig, options: dict) -> Iterator[str]:
    for name in (*SETTLING, *(name for name in READING if asked(config, name))):
        here = value_of(config, name)
        if here != options[name]:
            yield f"--{name}: {options[name]} there, {here} here"


def _other_words(tokenizer: PreTrainedTokenizerBase, there: dict[str, str]) -> Iterator[str]:
    for what, digest in _identity(tokenizer).items():
        if there[what] != digest:
            yield f"tokenizer: another {what.replace('_', ' ')}"


def _identity(tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """A hash of each part of the tokenizer that rows depend on."""
    parts = tokenizer_parts(tokenizer)
    return {
        name: hashlib.sha256(
            json.dumps(part, sort_keys=True, default=str).encode(errors="surrogatepass")
        ).hexdigest()
        for name, part in parts.items()
    }
