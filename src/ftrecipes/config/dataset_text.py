"""What `--dataset` says: the name of a data set, or several sets.

In words `a.jsonl:0.7,b.jsonl:0.3`; in YAML, Python and JSON a list of such words and of mappings,
`{"path": "a.jsonl", "weight": 0.7, "max_rows": 500, "format": "chat"}`. A text that is on the disk
as it stands, commas and colons with it, is one set.
"""

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ftrecipes.config.argv import BARE
from ftrecipes.config.data_files import DATA_SUFFIXES, find_data_files
from ftrecipes.config.entries import unique
from ftrecipes.config.faults import shown
from ftrecipes.config.flags import flags_of
from ftrecipes.config.mixing import MAX_ROWS, NAME, OWN, WEIGHT
from ftrecipes.config.names import close
from ftrecipes.config.schema import RunConfig
from ftrecipes.config.urls import is_url
from ftrecipes.config.values import describe, read_value

ALIASES = {"path": NAME, "dataset": NAME, "split": "train_split"}
FOR_ALL = {
    "chat_template": "a run has one, which is saved with the result",
    "val_fraction": "it is taken of each set",
    "truncation": "it is that of all rows",
    "on_bad_row": "it is that of all rows",
}
PATHS = (NAME, "train_file", "val_file")
UNREAD_WEIGHT = 1.0  # stands for one that can not be read, which is told
EXPECTED = "NAME, or NAME:WEIGHT,NAME:WEIGHT,..., or a list of sets"
Told = list[tuple[str, object, str, str]]
"""Faults: what is wrong, got, expected, what to do."""


def read_dataset(value: object) -> tuple[str | list[dict[str, Any]], Told]:
    """The name of the one set, or the sets as mappings, each with a `name`; and what is wrong.

    What can not be read is left out of the sets, so that the rest can still be checked.
    """
    told: Told = []
    value = _listed(value) if isinstance(value, str) else value
    entries = value if isinstance(value, list | tuple) else [value]
    sets = []
    for number, entry in enumerate(entries, start=1):
        if isinstance(entry, Mapping):
            sets += _of_mapping(entry, number, told)
        else:
            sets += _of_text(entry, told)
    if len(sets) == 1 and set(sets[0]) == {NAME}:
        return sets[0][NAME], told
    return sets or "", told


def _listed(text: str) -> object:
    """The list or object that a text writes, unless it is the name of what is there."""
    bare = text.strip()
    if bare[:1] + bare[-1:] not in ("[]", "{}") or _is_there(bare):
        return text
    try:
        return json.loads(bare, object_pairs_hook=unique)
    except (ValueError, RecursionError):
        return bare[1:-1] if bare.startswith("[") else text


def _of_text(entry: object, told: Told) -> list[dict[str, Any]]:
    try:
        text = read_value(entry, str)
    except ValueError as hint:
        do = "a flag without a value reads as True" if entry == BARE else str(hint)
        told.append(("bad value", entry, EXPECTED, do))
        return []
    if text.lstrip().startswith("{"):
        told.append(("no valid JSON", entry, EXPECTED, "write JSON in single quotes"))
        return []
    return [found for word in _words(text) for found in _of_word(word, told)] if text else []


def _words(text: str) -> list[str]:
    """What stands between the commas; a comma in the name of what is there parts nothing."""
    if _is_there(text) or _has_query(text):
        return [text]
    pieces, words = text.split(","), []
    while pieces:
        count = next(
            (n for n in range(len(pieces), 1, -1) if _is_there(_split(",".join(pieces[:n]))[0])), 1
        )
        words.append(",".join(pieces[:count]).strip())
        pieces = pieces[count:]
    return words


def _split(word: str) -> tuple[str, str | None]:
    """Name and weight of `name:weight`; None where there is no weight."""
    name, colon, tail = word.strip().rpartition(":")
    # The last colon of a URL and of a path of Windows has a slash behind it.
    is_name = "/" in tail or "\\" in tail or tail.lower().endswith(DATA_SUFFIXES)
    if not colon or is_name or _has_query(word) or _is_there(word):
        return word.strip(), None
    return name.strip(), tail.strip()


def _of_word(word: str, told: Told) -> Iterator[dict[str, Any]]:
    name, weight = _split(word)
    if not name:
        told.append(("the name of a set is empty", word, "NAME or NAME:WEIGHT between commas", ""))
        return
    own = {} if weight is None else {WEIGHT: _read(WEIGHT, weight, name, told)}
    yield {NAME: os.path.expanduser(name), **own}


def _of_mapping(entry: Mapping, number: int, told: Told) -> Iterator[dict[str, Any]]:
    """The one set that a mapping says, if it has a name."""
    found: dict[str, Any] = {}
    name = next((entry[key] for key in (NAME, *ALIASES) if key in entry), None)
    label = shown(name) if isinstance(name, str) and name else f"set {number}"
    for key, value in entry.items():
        key = str(key).replace("-", "_").removeprefix("data.")
        own = ALIASES.get(key, key)
        if own in found:
            told.append((f"{label}: {own} is given twice", value, "", "keep one"))
        elif own in (NAME, WEIGHT, MAX_ROWS, *OWN):
            if value is not None:
                found[own] = _read(own, value, label, told)
        elif own in FOR_ALL:
            do = f"say it for all: --data.{own}"
            told.append((f"{label}: {own} is no set's own: {FOR_ALL[own]}", value, "", do))
        else:
            known = (NAME, *ALIASES, WEIGHT, MAX_ROWS, *OWN)
            near = close(own, known)
            do = f"did you mean {near}?" if near else ""
            told.append((f"{label}: no such key: {key}", value, ", ".join(known), do))
    found = {key: value for key, value in found.items() if value is not None}
    if found.get(NAME):
        yield {NAME: found.pop(NAME), **found}
    elif name is None or name == "":
        told.append((f"set {number} has no name", dict(entry), "the key path or name", ""))


def _read(key: str, value: object, label: str, told: Told) -> Any:
    """The value of a key; where it can not be read that is told, and what may stand for it."""
    kinds = {NAME: str, WEIGHT: float, MAX_ROWS: int}
    kind = kinds[key] if key in kinds else flags_of(RunConfig)[f"data.{key}"].type
    try:
        result = read_value(value, kind)
    except ValueError as hint:
        do = str(hint)
        if key == WEIGHT and not do and str(value).isidentifier():
            do = "if a part of a hub data set is meant: a list in YAML has split for each set"
        told.append((f"{label}: {key} can not be read", value, describe(kind), do))
        return UNREAD_WEIGHT if key == WEIGHT else None
    return os.path.expanduser(result) if key in PATHS and result else result


def _is_there(name: str) -> bool:
    name = os.path.expanduser(name)
    return os.path.exists(name) or bool(find_data_files(name))


def _has_query(text: str) -> bool:
    """Whether commas and colons may be part of a URL."""
    return is_url(text) and "?" in text
