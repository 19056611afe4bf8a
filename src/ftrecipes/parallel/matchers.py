"""The names in a target: what each matches in a model."""

import sys
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import partial

from ftrecipes.parallel.name_sets import template
from ftrecipes.parallel.parts import Part, parts_of
from ftrecipes.parallel.roles import ROLES, in_role

# Finds the parts that a name matches in a block: the block, or parts of it; the outermost.
Matcher = Callable[[Part], list[Part]]


def matcher_of(name: str, blocks: Sequence[Part]) -> Matcher:
    """What a name of a target matches.

    It is a role; or a pattern, as fnmatch has them, of module names, where a star stands for dots
    too; or the name of a module; or the name or the import path of a class, of which subclasses
    are matched too. A word that is none of these but for its case is read as the one role or class
    that it can be (llm-foundry writes `mptblock`).
    """
    exact = _matcher(name)
    if any(map(exact, blocks)):
        return exact
    words = {*ROLES, *(cls.__name__ for part in _all(blocks) for cls in part.classes)}
    alike = [word for word in words if word.lower() == name.lower()]
    return _matcher(alike[0]) if len(alike) == 1 else exact


def words_for(blocks: Sequence[Part]) -> list[str]:
    """The roles and the classes that there are in the blocks."""
    roles = [role for role in ROLES if any(map(_matcher(role), blocks))]
    classes = (type(part.own).__name__ for part in _all(blocks) if part.computes)
    return [*roles, *dict.fromkeys(classes)]


def patterns_for(blocks: Sequence[Part]) -> list[str]:
    """The names of modules in the blocks, with stars for numbers."""
    return list(dict.fromkeys(template(part.name) for part in _all(blocks) if part.computes))


def _outermost(fits: Callable[[Part], bool], part: Part) -> list[Part]:
    """The part, or the outermost parts of it, that compute and fit."""
    if part.computes and fits(part):
        return [part]
    return [found for child in part.children() for found in _outermost(fits, child)]


def _fitting(name: str) -> Callable[[Part], bool]:
    """Whether a part is what a name, that is no role, means."""
    if any(sign in name for sign in "*?["):
        return lambda part: fnmatchcase(part.name, name)
    path, _, word = name.rpartition(".")
    meant = vars(sys.modules[path]).get(word) if path in sys.modules else None
    return lambda part: (
        part.name == name
        or any(
            meant is cls or name in (cls.__name__, f"{cls.__module__}.{cls.__qualname__}")
            for cls in part.classes
        )
    )


def _matcher(name: str) -> Matcher:
    if name == "block":
        return lambda block: [block]
    return partial(in_role, role=name) if name in ROLES else partial(_outermost, _fitting(name))


def _all(blocks: Sequence[Part]) -> Iterable[Part]:
    return (part for block in blocks for part in parts_of(block))
