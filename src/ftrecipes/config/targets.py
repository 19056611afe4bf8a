"""What is checkpointed, and in which blocks: a grammar that extends llm-foundry's.

A target is one name, a list of names, or a mapping from names to places. A place is `all`, an int k
(the first k blocks), `first-k`, `last-k`, `middle-k`, `range-i-j` (from i up to, without, j), the
number of a block in a list, several of these with commas between them, or a list of them.
Numbers below 0 count from the last block. Source: llm-foundry, models/utils/act_ckpt.py.

Mended here: several names may share a block, what a model does not have is an error instead of
nothing, and an entry of a list may be a comma list too.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NewType

from ftrecipes.config.entries import Number, unique
from ftrecipes.config.names import close

Target = NewType("Target", dict[str, Any])  # name -> place
EXPECTED = (
    'block, attention, mlp, norm, class names or patterns such as "model.layers.*.mlp", with '
    'commas between them, or JSON such as {"attention": "first-2, last-1", "mlp": [1]}'
)
PLACES = "all, first-k, last-k, middle-k, range-i-j, a whole number k (first k), or a list of them"
WHOLE_BLOCK = "block"
EVERYWHERE = "all"

_NAME = re.compile(r"(?:[\w.*?-]|\[[^\[\]]+\])+")  # as fnmatch and Python write them
_LIST = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]")  # as text; patterns in it have brackets too
_COMMA = re.compile(r",(?![^\[\]]*\])")  # none inside the brackets of a pattern
_PART = re.compile(r"(all)|(first|last|middle)-([0-9]{1,9})|(range)-([0-9]{1,9})-([0-9]{1,9})")
_BLOCK = re.compile(r"-?[0-9]{1,9}")
_WORDS = ("all", "first-2", "last-2", "middle-2", "range-0-2")  # one example of each
_RESERVED = ("false", "none", "null")
_Part = tuple[str, *tuple[int, ...]]  # a word of the grammar or "block", and its numbers


def read_target(value: object) -> Target:
    """The target that a text, a list or a mapping says: name -> place, as it was written.

    A name alone is meant in all blocks, an empty list is the whole of each block, and an empty
    mapping is nothing. What a place says is checked as far as no model is needed for it. Raises
    ValueError with a hint.
    """
    if isinstance(value, str):
        value = _entries(value)
    if isinstance(value, int) and not isinstance(value, bool):
        raise ValueError(f'say of what: {{"{WHOLE_BLOCK}": {value}}}')
    if isinstance(value, Mapping):
        target = unique([(_name(key), _plain(place)) for key, place in value.items()])
    elif isinstance(value, list | tuple):
        names = [WHOLE_BLOCK] if len(value) == 0 else [_name(entry) for entry in value]
        target = unique([(name, EVERYWHERE) for name in names])
    else:
        raise ValueError(f"{_shown(value)} is no name")
    for name, place in target.items():
        try:
            _parts(place)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return Target(target)


def blocks_at(place: object, num_blocks: int) -> tuple[int, ...]:
    """The blocks, from 0 on and in order, that a place of a target names among `num_blocks`.

    Raises ValueError, with what is wrong, for anything that is no place, and for a block or a range
    that such a model does not have; `first`, `last` and `middle` take at most all.
    """
    return tuple(sorted({i for part in _parts(place) for i in _numbers(part, num_blocks)}))


def _entries(text: str) -> object:
    """The list or the object that a text writes."""
    text = text.strip()
    if text.startswith("{"):
        try:
            return json.loads(text, object_pairs_hook=unique)
        except (json.JSONDecodeError, RecursionError):
            do = """write JSON in single quotes: '{"attention": "first-2", "mlp": [1]}'"""
            raise ValueError(do) from None
    in_brackets = _LIST.fullmatch(text)
    if in_brackets:
        try:
            return json.loads(text)
        except (json.JSONDecodeError, RecursionError):
            text = in_brackets[1]
    return [entry.strip().strip("'\"") for entry in _COMMA.split(text)]


def _name(entry: object) -> str:
    """The name of what is checkpointed; it is looked up only once there is a model."""
    if isinstance(entry, bool) or not isinstance(entry, str | int):
        raise ValueError(f"{_shown(entry)} is no name")
    name = str(entry).strip()
    word = name.lower()
    if word == EVERYWHERE:
        raise ValueError(f"write {WHOLE_BLOCK} for all blocks as a whole")
    if _PART.fullmatch(word) or _BLOCK.fullmatch(word):
        place = f"[{word}]" if _BLOCK.fullmatch(word) else f'"{word}"'
        raise ValueError(f'{name} is a place: say of what, {{"{WHOLE_BLOCK}": {place}}}')
    if word == "true":  # what a flag without a value reads as
        raise ValueError
    if not name or word in _RESERVED:
        raise ValueError(f"{name} is no name" if name else "a name is empty")
    mapped = re.fullmatch(r"([^:=]+)[:=](.+)", name)
    if mapped:
        what, place = (part.strip(" '\"") for part in mapped.groups())
        raise ValueError(f"""write '{{"{what}": {json.dumps(_meant(place))}}}'""")
    if _COMMA.search(name):
        raise ValueError(f"{name}: write each name as an entry of its own")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{_shown(name)} is no name of a class or a module, and no pattern")
    return name


def _meant(place: str) -> object:
    """The place, for JSON, that was written behind a name."""
    if _BLOCK.fullmatch(place):
        return [int(place)] if place.startswith("-") else int(place)
    return _entries(place) if _LIST.fullmatch(place) else place


def _plain(place: object) -> object:
    """A place as run.yaml can hold it, and gives it back."""
    if isinstance(place, list | tuple):
        return [_plain(entry) for entry in place]
    return int(place) if isinstance(place, Number) and _BLOCK.fullmatch(place) else place


def _parts(place: object) -> list[_Part]:
    """What a place is made of. Raises ValueError."""
    if isinstance(place, str):
        word = place.strip()
        if _BLOCK.fullmatch(word):
            first = "" if word.startswith("-") else f", first-{word} is the first {word}"
            raise ValueError(f'"{word}" could be a number or a count: [{word}] is one block{first}')
        return [_part(piece) for piece in place.split(",")]
    if isinstance(place, list | tuple):
        return [part for entry in place for part in _entry_parts(entry)]
    if isinstance(place, bool) or not isinstance(place, int):
        raise ValueError(f"{_shown(place)} is no place: {PLACES}")
    if place < 0:
        raise ValueError(f"{place} is no number of blocks: [{place}] counts from the last one")
    return [("first", place)]


def _entry_parts(entry: object) -> list[_Part]:
    """An entry of a list: the number of a block, or words."""
    if isinstance(entry, str):
        return [_part(piece) for piece in entry.split(",")]
    if isinstance(entry, bool) or not isinstance(entry, int):
        raise ValueError(f"{_shown(entry)} is no block: {PLACES}")
    return [("block", entry)]


def _part(piece: str) -> _Part:
    """One word of a place. Spaces around it and around its dashes are free."""
    word = re.sub(r"\s*-\s*", "-", piece.strip().lower())
    if _BLOCK.fullmatch(word):
        return "block", int(word)
    found = _PART.fullmatch(word)
    if found is None:
        raise ValueError(_no_place(word))
    name, *numbers = (group for group in found.groups() if group is not None)
    numbers = [int(number) for number in numbers]
    if name == "range" and numbers[0] >= numbers[1]:
        first, last = numbers
        near = f"range-{last}-{first}" if last < first else f"range-{first}-{first + 1}"
        raise ValueError(f"{word} has no block: did you mean {near}?")
    return name, *numbers


def _no_place(word: str) -> str:
    if not word:
        return f"a place is empty: {PLACES}"
    head, *rest = word.split("-")
    example = {text.partition("-")[0]: text for text in _WORDS}
    known = head if head in example else close(head, example)
    if known == "range" and len(rest) == 1 and _BLOCK.fullmatch(rest[0]):
        return f"{word} has no end: range-{rest[0]}-{int(rest[0]) + 1} is block {rest[0]} alone"
    if known == head:
        return f"{_shown(word)} is no place: write for example {example[known]}"
    if known is not None:
        near = "-".join([known, *rest])
        near = near if _PART.fullmatch(near) else example[known]
        return f"{_shown(word)} is no place: did you mean {near}?"
    return f"{_shown(word)} is no place: {PLACES}"


def _numbers(part: _Part, num_blocks: int) -> range:
    """The blocks of one part of a place."""
    word, *numbers = part
    if word == EVERYWHERE:
        return range(num_blocks)
    if word == "block":
        (number,) = numbers
        if not -num_blocks <= number < num_blocks:
            raise ValueError(f"there is no block {number}: {_having(num_blocks)}")
        return range(number % num_blocks, number % num_blocks + 1)
    if word == "range":
        start, end = numbers
        if end > num_blocks:
            near = f"; did you mean range-{start}-{num_blocks}?" if start < num_blocks else ""
            having = _having(num_blocks)
            raise ValueError(f"range-{start}-{end} goes past the last block: {having}{near}")
        return range(start, end)
    count = min(numbers[0], num_blocks)
    middle = max((num_blocks - 1) // 2 - count // 2, 0)
    start = {"first": 0, "last": num_blocks - count, "middle": middle}[word]
    return range(start, start + count)


def _having(num_blocks: int) -> str:
    return f"the model has {num_blocks}, from 0 to {num_blocks - 1}"


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=repr)
    return text if len(text) <= 80 else f"{text[:80]}..."
