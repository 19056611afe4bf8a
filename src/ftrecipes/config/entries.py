"""Entries of a list or an object, as one writes them: with commas, or as JSON."""

import json
import re
from typing import Any

NONE_WORDS = ("none", "null")


class Number(str):
    """A whole number as it stands in a YAML file: a text, as on a command line, and yet no word."""


def items(value: object) -> list:
    """The entries of a list, given as one or as text with commas. Raises ValueError."""
    if isinstance(value, list | tuple):
        return list(value)
    if not isinstance(value, str):
        return [value]
    text = value.strip()
    if re.fullmatch(r"\[.*\]", text, re.DOTALL):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            text = text[1:-1]
    if not text or text.lower() in NONE_WORDS:
        return []
    entries = [item.strip().strip("'\"") for item in text.split(",")]
    if not all(entries) or any(" " in entry for entry in entries):
        raise ValueError
    return entries


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object with these pairs; json would keep the last of two equal keys in silence."""
    keys = [key for key, _ in pairs]
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is given twice: keep one")
    return dict(pairs)
