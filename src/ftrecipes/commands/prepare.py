"""`ftrecipes prepare`: the rows of a run, tokenised and checked once for any number of runs."""

import sys
from pathlib import Path
from typing import NoReturn

from ftrecipes.commands.exits import run_command
from ftrecipes.config.errors import DataError
from ftrecipes.config.parse import parse_words
from ftrecipes.config.schema import PrepareConfig


def main(argv: list[str] | None = None) -> NoReturn:
    """Prepare the rows of the run that `argv` asks for, and leave with an exit code."""
    run_command("prepare", argv, _prepare)


def _prepare(words: list[str]) -> None:
    parsed = parse_words(words, into=PrepareConfig, writes=False)
    from ftrecipes.data.prepared import write_prepared
    from ftrecipes.data.splits import read_splits, report_splits
    from ftrecipes.finetuning import read_tokenizer
    from ftrecipes.runtime import log

    log.start()
    for warning in parsed.warnings:
        log.warning(warning)
    config, _, tokenizer = read_tokenizer(parsed.config)
    found = read_splits(config, tokenizer)
    report_splits(config, found)
    splits = {"train": found.rows, "validation": found.val_rows}
    splits = {name: rows for name, rows in splits.items() if rows is not None}
    folder = Path(config.to)
    try:
        write_prepared(config, tokenizer, splits, found.findings, folder=folder)
    except OSError as error:
        raise DataError(
            f"--to {folder}: can not be written.\n  got: {error.strerror}\n"
            "  do: check the disk and the permissions"
        ) from error
    sys.stderr.write(f"info: the rows are in {folder}: --dataset {folder}\n")
