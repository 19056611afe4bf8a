"""`ftrecipes config`: what flags and files add up to, and where each value comes from."""

import sys
from collections.abc import Iterator
from typing import Any, NoReturn

import yaml

from ftrecipes.commands.exits import run_command
from ftrecipes.commands.screen import show
from ftrecipes.config.flags import flags_of
from ftrecipes.config.parse import Parsed, parse_words, to_mapping
from ftrecipes.config.schema import RunConfig

ORIGIN_COLUMN = 48


def main(argv: list[str] | None = None) -> NoReturn:
    """Print the settings as YAML that `--config` reads again; exit code 2 when they have faults."""
    run_command("config", argv, lambda words: _show(parse_words(words, writes=False)))


def _show(parsed: Parsed) -> None:
    for warning in parsed.warnings:
        sys.stderr.write(f"warning: {warning}\n")
    show("\n".join(settings_yaml(parsed.config)) + "\n")


def settings_yaml(config: RunConfig) -> Iterator[str]:
    """Lines of YAML, the origin of each value in a comment."""
    sections = {flag.section for flag in flags_of(RunConfig).values()}
    for key, value in to_mapping(config).items():
        if key not in sections:
            yield _line(key, value, config.origins[key])
            continue
        yield f"{key}:"
        for inner, item in value.items():
            yield "  " + _line(inner, item, config.origins[f"{key}.{inner}"])


def _line(key: str, value: Any, origin: str) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=float("inf"))
    shown = f"{key}: {text.removesuffix('...' + chr(10)).rstrip()}"
    return f"{shown:{ORIGIN_COLUMN}}  # {origin}"
