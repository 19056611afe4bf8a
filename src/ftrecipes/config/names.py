"""Which flag was meant: by the words that other tools use for it, then by likeness in spelling."""

import difflib
from collections.abc import Iterable

from ftrecipes.config.meanings import MEANINGS, SETTLED

LIKELY = 0.72


def meant(name: str, known: Iterable[str]) -> str | None:
    """The flag among `known`, or flag and value, that another tool calls `name`."""
    known, name = set(known), name.lower()
    for word in (name, name.rpartition(".")[2]):
        for flag, words in MEANINGS.items():
            if word in words.split() and flag.partition(" ")[0] in known:
                return flag
    return None


def settled(name: str) -> str | None:
    """How a run settles what another tool has the flag `name` for."""
    return next((how for how, words in SETTLED.items() if name.lower() in words.split()), None)


def alike(name: str, known: Iterable[str]) -> str | None:
    """The flag among `known` with the same field in another section, or spelt much like `name`."""
    known, name = list(known), name.lower()
    field = name.rpartition(".")[2]
    same_field = [flag for flag in known if flag.rpartition(".")[2] == field]
    best = max(same_field or known, key=lambda flag: _likeness(name, flag))
    return best if same_field or _likeness(name, best) >= LIKELY else None


def close(word: str, choices: Iterable[str], *, likeness: float = 0.6) -> str | None:
    """The choice that `word` is a misspelling of, if one is alike enough (of at most 1)."""
    return next(iter(difflib.get_close_matches(word, choices, n=1, cutoff=likeness)), None)


def _likeness(name: str, flag: str) -> float:
    """Between 0 and 1: of the whole names, or of the fields alone when one has no section."""
    whole = difflib.SequenceMatcher(a=name, b=flag).ratio()
    if ("." in name) == ("." in flag):
        return whole
    fields = name.rpartition(".")[2], flag.rpartition(".")[2]
    return max(whole, 0.95 * difflib.SequenceMatcher(a=fields[0], b=fields[1]).ratio())
