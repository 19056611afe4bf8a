"""`ftrecipes preview`: what a run would train on, token by token, before a weight is read."""

import sys
from pathlib import Path
from typing import NoReturn

from ftrecipes.commands.exits import run_command
from ftrecipes.commands.screen import show
from ftrecipes.config.errors import ConfigError
from ftrecipes.config.parse import parse_words
from ftrecipes.config.schema import PreviewConfig
from ftrecipes.runtime.ranks import read_ranks


def main(argv: list[str] | None = None) -> NoReturn:
    """Show the data of the run that `argv` asks for, and leave with an exit code.

    That is 3 where the run would be refused for its data, as the run itself would end.
    """
    run_command("preview", argv, _preview)


def _preview(words: list[str]) -> None:
    parsed = parse_words(words, into=PreviewConfig, writes=False)
    from ftrecipes.commands.preview_page import page
    from ftrecipes.commands.preview_screen import screen
    from ftrecipes.data.preview import preview
    from ftrecipes.finetuning import read_tokenizer
    from ftrecipes.runtime import log

    log.start()
    for warning in parsed.warnings:
        log.warning(warning)
    ranks = read_ranks()
    config, _, tokenizer = read_tokenizer(parsed.config)
    found = preview(
        *(config, tokenizer),
        num_rows=config.rows,
        row=config.row,
        world_size=ranks.size,
    )
    if ranks.rank == 0:
        show(screen(found, config))
        if config.html is not None:
            _write(config.html, page(found, config))
    if found.refusal is not None:
        raise found.refusal


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"--html {path}: can not be written.\n  got: {error.strerror}\n  do: name another file"
        ) from error
    sys.stderr.write(f"info: the page is {Path(path).absolute()}\n")
