"""The words of a command line, split exactly as fire 0.7.1 will split them.

What fire would bend in silence is a fault here: `--x -` (reads as True), words after `--`
(swallowed), `--noX` (X = False), a flag given twice (the last wins), words that belong to no flag
(found only after the function has run). Its rules: fire/core.py `_ParseKeywordArgs`, `_IsFlag`.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ftrecipes.config.faults import Fault, shown
from ftrecipes.config.names import alike, meant

BARE = "True"  # what fire gives for a flag without a value
DASHES = ("\u2012", "\u2013", "\u2014", "\u2212")
CLOSING = {"[": "]", "{": "}"}


@dataclass
class Words:
    """What fire will hand over (name -> text), and what must be mended before."""

    flags: dict[str, str] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)


def split(argv: Sequence[str], known: Iterable[str]) -> Words:
    """The flags in `argv` and the faults in its shape; a word with a fault gives no flag.

    `known` are the names of flags that a hint may point to.
    """
    found = Words()
    position = 0
    while position < len(argv):
        word = argv[position]
        value = argv[position + 1] if position + 1 < len(argv) else None
        if word in ("-", "--"):
            do = f"leave it out, or, where it is meant as a value, write --NAME={word}"
            found.faults.append(Fault(f"{word}: dashes alone are no flag", do=do))
        elif not _is_flag(word):
            last = _last_in_row(argv, position)
            found.faults.append(_stray(argv, position, last))
            position = last
        elif value is not None and _is_minus_entry(word, value):
            what = f"{word}: a value that begins with a dash reads as a flag"
            found.faults.append(Fault(what, got=value, do=f"write {word}={value}"))
            position += 1
        elif "=" in word or value is None or value in ("-", "--") or _is_flag(value):
            _add(found, word, None, known=known)
        else:
            last = _last_of_brackets(argv, position + 1)
            if last == position + 1:
                _add(found, word, value, known=known)
            else:
                found.faults.append(_spaces(word, argv[position + 1 : last + 1]))
            position = last
        position += 1
    return found


def _is_flag(word: str) -> bool:
    return word.startswith("--") or re.match(r"-[a-zA-Z]", word) is not None


def _is_minus_entry(word: str, value: str) -> bool:
    """Whether a flag whose entries may have a minus before them is followed by such an entry."""
    name = word.lstrip("-").replace("-", "_")
    return name.endswith("save_ops") and re.match(r"-[a-zA-Z]", value) is not None


def _add(found: Words, word: str, value: str | None, *, known: Iterable[str]) -> None:
    """Add one flag: `--name=value`, `--name` with `value`, or `--name` alone."""
    name, equals, text = word.partition("=")
    key = name.lstrip("-").replace("-", "_")
    given = text if equals else value
    if not re.fullmatch(r"--[A-Za-z_][\w.-]*", name):
        near = f"--{key}" if key else "a name after the dashes"
        found.faults.append(Fault(f"{word}: not a flag", expected="--name", do=f"write {near}"))
    elif given is None and key.startswith("no"):
        what = f"{name}: no value follows, and there are no negations by name"
        off = key[2:].lstrip("_")
        near = meant(off, known) or alike(off, known) or "NAME"
        do = f"to turn a flag off write --{near} false; --help lists all"
        found.faults.append(Fault(what, do=do))
    elif key in found.flags:
        values = f"{shown(found.flags[key])} and {shown(BARE if given is None else given)}"
        found.faults.append(Fault(f"--{key}: given twice", got=values, do="keep one", flags=(key,)))
    else:
        found.flags[key] = BARE if given is None else given


def _last_in_row(argv: Sequence[str], first: int) -> int:
    """Position of the last of the words from `first` on that are no flags."""
    last = first
    while last + 1 < len(argv) and not _is_flag(argv[last + 1]) and argv[last + 1] != "-":
        last += 1
    return last


def _last_of_brackets(argv: Sequence[str], first: int) -> int:
    """Position of the word that closes the bracket which `argv[first]` opens; `first` if none."""
    closing = CLOSING.get(argv[first][:1])
    if closing is None or closing in argv[first]:
        return first
    for last in range(first + 1, _last_in_row(argv, first) + 1):
        if argv[last].endswith(closing):
            return last
    return first


def _spaces(word: str, pieces: Sequence[str]) -> Fault:
    text = " ".join(pieces)
    return Fault(
        f"{word}: the value has spaces, so that the shell cut it into {len(pieces)} words",
        got=text,
        expected="one word",
        do=f"write it without spaces, or in quotes: {word} '{text}'",
    )


def _stray(argv: Sequence[str], first: int, last: int) -> Fault:
    text = " ".join(argv[first : last + 1])
    word = argv[first].strip()
    if word.startswith(DASHES):
        hint = f"the dash was replaced by a long one: write --{word.lstrip(''.join(DASHES) + '-')}"
    elif word.startswith("-") and word != argv[first]:
        hint = f"a space stands before the dashes: write {word}"
    else:
        hint = "every value follows a --flag; a value with spaces needs quotes"
    after = f" after {' '.join(argv[max(0, first - 2) : first])}" if first else ""
    return Fault(f"{shown(text)}{after}: belongs to no flag", do=hint)
