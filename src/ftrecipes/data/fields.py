"""Values of a row by key; what is wrong with one is a RowFault that names the key."""

import json
from collections.abc import Mapping

import numpy as np

from ftrecipes.data.json_text import JsonValues
from ftrecipes.data.rows import RowFault, Unreadable


def required(row: Mapping, key: str, *, where: str = "") -> object:
    """The value of `key`. `where` stands before it in the name that a fault gives it."""
    if key not in row:
        raise RowFault(f"key '{where}{key}' is missing")
    return row[key]


def words(row: Mapping, key: str, *, where: str = "", may_be_empty: bool = False) -> str:
    """The text of `key`."""
    value = required(row, key, where=where)
    return whole_text(value, f"{where}{key}", may_be_empty=may_be_empty)


def optional_words(row: Mapping, key: str) -> str:
    """The text of `key`; nothing where it is missing, null or blank."""
    found = "" if row.get(key) is None else words(row, key, may_be_empty=True)
    return found if found.strip() else ""


def whole_text(value: object, name: str, *, may_be_empty: bool = False) -> str:
    """`value` if it is text that has words and can be encoded."""
    if not isinstance(value, str):
        raise RowFault(f"key '{name}' is {kind_of(value)}; expected text")
    if not may_be_empty and not value.strip():
        raise RowFault(f"key '{name}' is empty; expected text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RowFault(f"key '{name}' holds half a character (a lone surrogate)") from error
    return value


def item_list(value: object, name: str, *, of: str) -> list:
    """A list, or one that a cell of a table holds as JSON text."""
    found = from_json(value, name, expected=f"a list of {of}") if isinstance(value, str) else value
    if not isinstance(found, list | tuple):
        kind = f"JSON text of {kind_of(found)}" if isinstance(value, str) else kind_of(found)
        raise RowFault(f"key '{name}' is {kind}; expected a list of {of}")
    return list(found)


def from_json(text: str, name: str, *, expected: str) -> object:
    """What a JSON text says."""
    try:
        value = JsonValues().read_whole(text)
    except json.JSONDecodeError as error:
        raise RowFault(f"key '{name}' is text that is no JSON; expected {expected}") from error
    if isinstance(value, Unreadable):
        raise RowFault(f"key '{name}' is JSON text in which {value.reason}")
    return value


def integers(row: Mapping, key: str) -> np.ndarray:
    """int64 [T] of a list, array or tensor of whole numbers."""
    value = required(row, key)
    try:
        numbers = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise RowFault(f"key '{key}' is not one flat list of whole numbers") from error
    if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
        raise RowFault(f"key '{key}' is {kind_of(value)}; expected a list of whole numbers")
    return numbers.astype(np.int64)


def not_a_row(row: object) -> str:
    """Why `row`, which has no keys, can not be used."""
    if isinstance(row, Unreadable):
        return row.reason
    return f"the row is {kind_of(row)}; expected an object with keys"


def kind_of(value: object) -> str:
    """What a wrong value is, in a few words."""
    if value is None:
        return "null"
    names = {bool: "true or false", int: "a number", float: "a number", str: "text"}
    names |= {list: "a list", dict: "an object"}
    return names.get(type(value), f"of type {type(value).__name__}")
