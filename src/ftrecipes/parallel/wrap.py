"""Which modules of a causal language model are gathered as one: its units.

One unit a block, with the adapters inside of it; the embedding and the head one each; the rest,
and what shares a parameter with another unit (tied embeddings), belongs to the root and stays
gathered while a step runs. Units never contain each other, but for the root.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
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
    that the model itself says must not be split over devices, and the members of lists in parts of
    which it says nothing. Encoders and vision parts have theirs too. Ask again after `recompute`,
    whose wrappers then are the units. Needs no weights; each rank for itself. Raises ModelError,
    naming the classes that repeat in the model, when no block is found.
    """
    lm = model.get_base_model() if isinstance(model, PeftModel) else model
    embedding, head = lm.get_input_embeddings(), lm.get_output_embeddings()
    ends = {module: "embedding" for module in (embedding,) if module is not None}
    ends |= {module: "head" for module in (head,) if module not in (None, embedding)}
    apart = set(ends)  # what is in no block
    while True:
        blocks = _find_blocks(lm, wrap_classes, apart)
        found = dict.fromkeys(blocks, "block") | ends
        found |= dict.fromkeys(_large_tables(lm, blocks, ends), "embedding")
        sharing = _sharing(model, list(found))
        if apart.issuperset(block for block in blocks if block in sharing):
            break
        apart |= sharing  # their parts may be blocks
    if not blocks:
        raise _no_blocks(lm, wrap_classes)
    names = {module: name for name, module in model.named_modules()}
    units = [Unit(names[m], kind, (m,)) for m, kind in found.items() if m not in sharing]
    return (*units, Unit("", "root", (model,)))


def blocks_of(units: Iterable[Unit]) -> list[nn.Module]:
    """The modules of all block units, in the order of the model."""
    return [module for unit in units if unit.kind == "block" for module in unit.modules]


def _find_blocks(
    lm: PreTrainedModel, wrap_classes: Sequence[str], apart: set[nn.Module]
) -> list[nn.Module]:
    if wrap_classes:
        return list(_outermost(lm, set(wrap_classes), apart, lift=False))
    blocks = list(_outermost(lm, set(lm._no_split_modules or ()), apart, lift=True))
    return blocks + list(_list_members(lm, apart, set(blocks)))


def _outermost(
    module: nn.Module, classes: set[str], apart: set[nn.Module], *, lift: bool
) -> Iterator[nn.Module]:
    """Modules of the classes that have nothing of `apart` inside. `lift`: a member of a list that
    has only parts of these classes (attentions, say) is taken as a whole."""
    for child in module.children():
        inside = set(child.modules())
        whole = lift and isinstance(module, nn.ModuleList)
        matches = any(map(partial(_is_one_of, classes), inside if whole else [child]))
        if matches and inside.isdisjoint(apart):
            yield child
        else:
            yield from _outermost(child, classes, apart, lift=lift)


def _is_one_of(classes: set[str], module: nn.Module) -> bool:
    return type(without_wrapper(module)).__name__ in classes


def _list_members(
    module: nn.Module, apart: set[nn.Module], blocks: set[nn.Module]
) -> Iterator[nn.Module]:
    """Members with parts, of the outermost lists of two and more beside the `blocks`."""
    listed = isinstance(module, nn.ModuleList) and len(module) > 1
    for child in module.children():
        if child in blocks:
            continue
        inside = set(child.modules())
        if listed and any(child.children()) and inside.isdisjoint(apart | blocks):
            yield child
        else:
            yield from _list_members(child, apart, blocks)


def _large_tables(
    lm: nn.Module, blocks: Sequence[nn.Module], ends: Iterable[nn.Module]
) -> list[nn.Embedding]:
    """Other embeddings that are as large as a block (some models have one for all blocks)."""
    size = min((sum(p.numel() for p in block.parameters()) for block in blocks), default=0)
    taken = {part for module in (*blocks, *ends) for part in module.modules()}
    return [
        module
        for module in lm.modules()
        if isinstance(module, nn.Embedding)
        and module not in taken
        and module.weight.numel() >= size
    ]


def _sharing(model: nn.Module, modules: Sequence[nn.Module]) -> set[nn.Module]:
    """Those of `modules` that have a parameter which another one of them, or the rest, has too."""
    taken = {part for module in modules for part in module.modules()}
    rest = {p for m in model.modules() if m not in taken for p in m.parameters(recurse=False)}
    owners = Counter(p for module in modules for p in module.parameters())
    owners.update(rest)
    return {module for module in modules if any(owners[p] > 1 for p in module.parameters())}


def _no_blocks(lm: PreTrainedModel, wrap_classes: Sequence[str]) -> ModelError:
    classes = Counter(type(without_wrapper(m)).__name__ for m in lm.modules() if any(m.children()))
    there = ", ".join(f"{name} ({count})" for name, count in classes.items() if count > 1)
    asked = f"--fsdp.wrap_classes {' '.join(wrap_classes)}" if wrap_classes else "no list of blocks"
    return ModelError(
        f"The blocks of {type(lm).__name__} to shard can not be told.\n"
        f"  got: {asked}\n  expected: classes of modules that repeat; here: {there or 'none'}\n"
        "  do: set --fsdp.wrap_classes to the class of its decoder blocks"
    )
