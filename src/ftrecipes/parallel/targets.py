"""Which modules of a model are checkpointed: what a target (config/targets.py) selects.

A name of a target is a role (roles.py), a class, or a name or a pattern of where modules are. It
selects inside of blocks only, and of the modules that it matches the outermost.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from peft import PeftModel
from torch import nn

from ftrecipes.config.errors import ConfigError
from ftrecipes.config.faults import Fault, shown
from ftrecipes.config.names import close
from ftrecipes.config.targets import Target, blocks_at
from ftrecipes.parallel.matchers import matcher_of, patterns_for, words_for
from ftrecipes.parallel.name_sets import compressed, numbers, template
from ftrecipes.parallel.parts import Part, part_at, parts_of

FLAG = "--activation_checkpointing.target"
_MOST_SHOWN = 3


@dataclass(frozen=True)
class Selected:
    """A module to checkpoint."""

    name: str
    """As transformers has it: without what adapters and wrappers put before and into it."""
    module: nn.Module
    """With its adapter around it, where it has one."""


@dataclass(frozen=True)
class _Hit:
    part: Part
    matcher: str


def select(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    target: Target | None = None,
    *,
    every_n: int = 0,
) -> tuple[Selected, ...]:
    """The modules to `recompute`, in the order of the model; none is inside of another.

    Without a target they are all `blocks`, or the first and then each `every_n`-th of them; the
    number of a block is its index in `blocks`. Needs no weights; each rank for itself. Raises
    ConfigError with all that is wrong: a name that matches nothing inside of the blocks, or
    nothing in those that are asked for, blocks that there are none of, and modules inside of each
    other. A norm in an attention or an mlp of the same target is no fault: it goes with that.
    """
    lm = model.get_base_model() if isinstance(model, PeftModel) else model
    tree = list(parts_of(part_at("", lm)))
    places = {layer: part for part in reversed(tree) for layer in part.layers}  # the first of each
    # what PEFT trains whole leaves its unused original behind, which may look like a block
    known = [places[block] for block in blocks if block in places]
    chosen = known[:: every_n or 1] if target is None else _chosen(tree, known, target)
    modules = {part.module for part in chosen}
    names: dict[nn.Module, str] = {}
    for part in tree:
        if part.module in modules:
            names.setdefault(part.module, part.name)
    return tuple(Selected(name, module) for module, name in names.items())


def in_words(selected: Iterable[Selected]) -> str:
    """Exactly these modules, those that differ in numbers only as one, with their classes."""
    by_class: dict[tuple[str, str], list[str]] = {}
    for one in selected:
        own = type(part_at(one.name, one.module).own).__name__
        by_class.setdefault((template(one.name), own), []).append(one.name)
    return ", ".join(
        f"{pattern} ({own})"
        for (_, own), names in by_class.items()
        for pattern in compressed(names)
    )


def _chosen(tree: list[Part], blocks: list[Part], target: Target) -> list[Part]:
    """What the names of a target select. Raises ConfigError."""
    faults: list[str] = []
    hits: dict[nn.Module, _Hit] = {}
    pairs: list[tuple[_Hit, _Hit]] = []  # modules that are inside of each other, or the same
    for matcher, place in target.items():
        try:
            found = _found(matcher, place, tree=tree, blocks=blocks)
        except ConfigError as error:
            faults += error.faults
            continue
        for hit in (_Hit(part, matcher) for part in found):
            other = hits.setdefault(hit.part.module, hit)
            pairs += [(other, hit)] if other.matcher != matcher else []
    pairs += [(outer, inner) for outer in hits.values() for inner in _inside(outer, hits)]
    wrong = {(a.matcher, b.matcher): (a, b) for a, b in reversed(pairs) if not _goes_with(a, b)}
    faults += [_overlap(*pair) for pair in reversed(wrong.values())]
    if faults:
        raise ConfigError(faults)
    covered = {inner.part.module for _, inner in pairs}
    return [hit.part for module, hit in hits.items() if module not in covered]


def _found(matcher: str, place: object, *, tree: list[Part], blocks: list[Part]) -> list[Part]:
    """What one name selects in its place. Raises ConfigError."""
    matches = [matcher_of(matcher, blocks)(block) for block in blocks]
    if not any(matches):
        raise ConfigError(_unmatched(matcher, tree=tree, blocks=blocks))
    try:
        asked = blocks_at(place, len(blocks))
    except ValueError as error:
        raise ConfigError(Fault(f"{FLAG}: {matcher}: {error}", got=shown(place)).text) from None
    found = [part for block in asked for part in matches[block]]
    if asked and not found:
        there = numbers(block for block, parts in enumerate(matches) if parts)
        raise ConfigError(
            Fault(
                f"{FLAG}: there is no {matcher} in these blocks",
                got=f"blocks {numbers(asked)}",
                expected=f"some of the blocks that have one: {there}",
            ).text
        )
    return found


def _unmatched(matcher: str, *, tree: list[Part], blocks: list[Part]) -> str:
    """Why a name matches nothing, and what would match."""
    model = type(tree[0].own).__name__
    words, patterns = words_for(blocks), patterns_for(blocks)
    outside = [part.name or model for part in matcher_of(matcher, blocks)(tree[0])]
    only = ", ".join(outside[:_MOST_SHOWN])
    place, _, word = matcher.rpartition(".")
    near = next((pattern for pattern in patterns if pattern.endswith(f".{matcher}")), None)
    near = near or (close(template(matcher), patterns) if place else None) or close(word, words)
    return Fault(
        f"{FLAG}: {shown(matcher)} matches "
        + (f"{only} only, in no block of {model}" if outside else f"nothing in {model}"),
        got=shown(matcher),
        expected=f"{', '.join(words)}, or a pattern of module names such as {patterns[:2][-1]}",
        do=f"did you mean {near}?" if near else "",
    ).text


def _inside(outer: _Hit, hits: Mapping[nn.Module, _Hit]) -> list[_Hit]:
    """The hits on parts of what another one hits."""
    parts = [part for child in outer.part.children() for part in parts_of(child)]
    return [hits[part.module] for part in parts if part.module in hits]


def _goes_with(outer: _Hit, inner: _Hit) -> bool:
    """Whether the roles leave it to the outer module: norms of queries and keys, say."""
    return inner.matcher == "norm" and outer.matcher in ("attention", "mlp")


def _overlap(outer: _Hit, inner: _Hit) -> str:
    names = f"{inner.part.name} ({inner.matcher})", f"{outer.part.name} ({outer.matcher})"
    same = inner.part.module is outer.part.module
    return Fault(
        f"{FLAG}: {names[0]} is {'' if same else 'inside of '}{names[1]}",
        got=f"{outer.matcher}, {inner.matcher}",
        expected="modules that are not inside of each other, or they would be computed three times",
        do="leave out one of the two, or ask for them in different blocks",
    ).text
