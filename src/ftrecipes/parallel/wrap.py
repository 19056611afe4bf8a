"""Which modules of a causal language model are gathered as one: its units.

One unit a block, with the adapters inside of it; the embedding and the head one each; the rest,
and what shares a parameter with another unit (tied embeddings), belongs to the root and stays
gathered while a step runs. Units never contain each other, but for the root.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from peft import PeftModel
from torch import nn
from transformers import PreTrainedModel

from ftrecipes.config.errors import ModelError
from ftrecipes.parallel.recompute import without_wrapper


@dataclass(frozen=True)
class Unit:
    """Modules that are gathered, computed on and cut into shares together."""

    name: str
    """Where the module is in the model; empty for the root."""
    kind: Literal["block", "embedding", "head", "root"]
    modules: tuple[nn.Module, ...]


def lora_aware_wrap_policy(model: nn.Module, wrap_classes: Sequence[str] = ()) -> tuple[Unit, ...]:
    """Units of a transformers model, with or without adapters of PEFT; the root is the last.

    Blocks are the outermost modules of a class in `wrap_classes`; without those, of the classes
    that the model itself says must not be split over devices; where it says nothing, the modules of
    its outermost lists. Encoders and vision parts have theirs too. Ask again after `recompute`,
    whose wrappers then are the units. Needs no weights; each rank for itself. Raises ModelError,
    naming the classes that repeat in the model, when no block is found.
    """
    lm = model.get_base_model() if isinstance(model, PeftModel) else model
    names = {module: name for name, module in model.named_modules()}
    embedding, head = lm.get_input_embeddings(), lm.get_output_embeddings()
    ends = [module for module in (embedding, head) if module is not None]
    blocks = _find_blocks(lm, wrap_classes, ends)
    found = [("block", block) for block in blocks]
    found += [("embedding", table) for table in _large_tables(lm, blocks, ends)]
    found += [("embedding", embedding)] if embedding is not None else []
    found += [("head", head)] if head is not None and head is not embedding else []
    shared = _shared_parameters(model, [module for _, module in found])
    units = [
        Unit(names[module], kind, (module,))
        for kind, module in found
        if shared.isdisjoint(map(id, module.parameters()))
    ]
    return (*units, Unit("", "root", (model,)))


def blocks_of(units: Iterable[Unit]) -> list[nn.Module]:
    """The modules of all block units, in the order of the model."""
    return [module for unit in units if unit.kind == "block" for module in unit.modules]


def _find_blocks(
    lm: PreTrainedModel, wrap_classes: Sequence[str], ends: Sequence[nn.Module]
) -> list[nn.Module]:
    classes = set(wrap_classes) or set(lm._no_split_modules or ())
    blocks = list(_outermost(lm, classes, ends, lift=not wrap_classes)) if classes else []
    if not blocks and not wrap_classes:
        blocks = list(_list_members(lm, ends))
    if blocks:
        return blocks
    repeated = Counter(type(without_wrapper(m)).__name__ for m in lm.modules() if any(m.children()))
    there = ", ".join(f"{name} ({count})" for name, count in repeated.items() if count > 1)
    asked = f"--fsdp.wrap_classes {' '.join(wrap_classes)}" if wrap_classes else "no list of blocks"
    raise ModelError(
        f"The blocks of {type(lm).__name__} to shard can not be told.\n"
        f"  got: {asked}\n  expected: classes of modules that repeat; here: {there or 'none'}\n"
        "  do: set --fsdp.wrap_classes to the class of its decoder blocks"
    )


def _outermost(
    module: nn.Module,
    classes: set[str],
    ends: Sequence[nn.Module],
    *,
    lift: bool,
    seen: set[nn.Module] | None = None,
) -> Iterator[nn.Module]:
    """Modules of the classes that hold neither embedding nor head. `lift`: a member of a list that
    has only parts of these classes (attentions, say) is taken as a whole."""
    seen = set() if seen is None else seen
    for child in module.children():
        if child in seen:
            continue
        seen.add(child)
        inside = set(child.modules())
        if not inside.isdisjoint(ends):
            matches = False
        elif lift and isinstance(module, nn.ModuleList):
            matches = any(_is_one_of(part, classes) for part in inside)
        else:
            matches = _is_one_of(child, classes)
        if matches:
            seen |= inside
            yield child
        else:
            yield from _outermost(child, classes, ends, lift=lift, seen=seen)


def _is_one_of(module: nn.Module, classes: set[str]) -> bool:
    return type(without_wrapper(module)).__name__ in classes


def _list_members(module: nn.Module, ends: Sequence[nn.Module]) -> Iterator[nn.Module]:
    """Members of the outermost lists of two and more, without those that hold embedding or head."""
    for child in module.children():
        members = list(child) if isinstance(child, nn.ModuleList) else []
        inside = set(child.modules())
        if len(members) > 1 and inside.isdisjoint(ends):
            yield from dict.fromkeys(m for m in members if any(True for _ in m.parameters()))
        else:
            yield from _list_members(child, ends)


def _large_tables(
    lm: nn.Module, blocks: Sequence[nn.Module], ends: Sequence[nn.Module]
) -> list[nn.Embedding]:
    """Other embeddings that are as large as a block (some models have one for each block)."""
    size = min(sum(p.numel() for p in block.parameters()) for block in blocks)
    taken = {part for module in (*blocks, *ends) for part in module.modules()}
    return [
        module
        for module in lm.modules()
        if isinstance(module, nn.Embedding)
        and module not in taken
        and module.weight.numel() >= size
    ]


def _shared_parameters(model: nn.Module, modules: Sequence[nn.Module]) -> set[int]:
    """Ids of the parameters of `modules` that another one of them, or the rest, has too."""
    taken = {part for module in modules for part in module.modules()}
    rest = [p for m in model.modules() if m not in taken for p in m.parameters(recurse=False)]
    owners = Counter(id(p) for module in modules for p in module.parameters())
    owners.update({id(p) for p in rest})
    return {key for key, count in owners.items() if count > 1}
