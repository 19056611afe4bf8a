"""Values: text from a command line, or a value from YAML or Python, read by the field's type."""

import json
import math
import os
from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from ftrecipes.config.entries import NONE_WORDS, items, unique
from ftrecipes.config.names import close
from ftrecipes.config.targets import EXPECTED, Target, read_target

TRUE_WORDS = ("true", "yes", "1", "on")
FALSE_WORDS = ("false", "no", "0", "off")
DTYPE_WORDS = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp32": "float32",
    "float": "float32",
}


def read_value(value: object, kind: Any) -> Any:
    """`value` as the type `kind` of a field. Raises ValueError with a hint, or without a message.

    Nothing is guessed: an integer field refuses 1.5, a number must be finite, and a text field
    takes no number, whose spelling is lost.
    """
    inner, optional = _unwrap(kind)
    if optional and (value is None or _word(value) in NONE_WORDS):
        return None
    if inner is Target:
        return read_target(value)
    if get_origin(inner) is Literal:
        return _read_choice(value, get_args(inner))
    if get_origin(inner) is list:
        return [read_value(item, get_args(inner)[0]) for item in items(value)]
    if get_origin(inner) is dict:
        return _read_mapping(value, get_args(inner)[1])
    result = {bool: _read_bool, int: _read_int, float: _read_float, str: _read_text}[inner](value)
    if optional and result == "":
        raise ValueError("leave the flag out, or write none")
    return result


def describe(kind: Any) -> str:
    """What a value of this type looks like, for a person."""
    inner, optional = _unwrap(kind)
    if inner is Target:
        text = EXPECTED
    elif get_origin(inner) is Literal:
        text = "one of " + ", ".join(get_args(inner))
    elif get_origin(inner) is list:
        text = "whole numbers" if get_args(inner)[0] is int else "names"
        text += " separated by commas, without spaces"
    elif get_origin(inner) is dict:
        is_text = get_args(inner)[1] is str
        text = "a JSON object with numbers, such as '{\"q_proj\": 8}'"
        text = "pairs such as instruction=question,output=answer, or JSON" if is_text else text
    else:
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
        text = words[inner]
    return text + (" (or none)" if optional else "")


def _unwrap(kind: Any) -> tuple[Any, bool]:
    if get_origin(kind) not in (Union, UnionType):
        return kind, False
    return next(part for part in get_args(kind) if part is not type(None)), True


def _word(value: object) -> str:
    return str(value).strip().lower() if isinstance(value, str | bool | int) else ""


def _read_bool(value: object) -> bool:
    word = _word(value)
    if word not in TRUE_WORDS + FALSE_WORDS:
        raise ValueError
    return word in TRUE_WORDS


def _read_int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError
    try:
        return int(value)
    except ValueError:
        raise ValueError from None


def _read_float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise ValueError from None
    if not math.isfinite(number):
        raise ValueError("the number must be finite")
    return number


def _read_text(value: object) -> str:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if not isinstance(value, str):
        raise ValueError("in YAML and Python, put the value in quotes")
    if value == "True":
        raise ValueError
    check_text(value)
    return str(value)


def check_text(text: str) -> None:
    """Raise ValueError for what can be no name of a file, or can not be written to one."""
    if "\0" in text:
        raise ValueError("take the zero byte out")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("write it in valid UTF-8") from None


def _read_choice(value: object, choices: tuple[str, ...]) -> str:
    word = _word(value).removeprefix("torch.")
    by_word = {choice.lower(): choice for choice in choices}
    word = word if word in by_word else DTYPE_WORDS.get(word, word)
    if word not in by_word:
        near = close(word, by_word)
        raise ValueError(f"did you mean {by_word[near]}?" if near else "")
    return by_word[word]


def _read_mapping(value: object, kind: Any) -> dict:
    if isinstance(value, str) and kind is str and not value.lstrip().startswith("{"):
        pairs = [entry.partition("=") for entry in items(value)]
        if not all(equals for _, equals, _ in pairs):
            raise ValueError
        value = unique([(key.strip(), item.strip()) for key, _, item in pairs])
    elif isinstance(value, str):
        try:
            value = json.loads(value, object_pairs_hook=unique)
        except (json.JSONDecodeError, RecursionError):
            raise ValueError from None
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise ValueError
    return {read_value(key, str): read_value(item, kind) for key, item in value.items()}
