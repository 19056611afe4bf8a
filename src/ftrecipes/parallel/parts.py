"""The modules of a model under the names that transformers gives them, whatever wraps them."""

from collections.abc import Iterator
from dataclasses import dataclass

from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import ModulesToSaveWrapper
from torch import nn

from ftrecipes.parallel.recompute import Recomputed


@dataclass(frozen=True)
class Part:
    """A module of a model together with what wraps it: an adapter, or a checkpoint."""

    name: str
    """As transformers has it, without the parts of wrappers; empty for the model."""
    layers: tuple[nn.Module, ...]
    """From the outermost wrapper down to the module itself."""

    @property
    def module(self) -> nn.Module:
        """What the model calls."""
        return self.layers[0]

    @property
    def own(self) -> nn.Module:
        """The module without wrappers."""
        return self.layers[-1]

    @property
    def classes(self) -> tuple[type, ...]:
        """Those that the module, and what wraps it, is an instance of; the nearest first."""
        return tuple(dict.fromkeys(c for m in reversed(self.layers) for c in type(m).__mro__))

    @property
    def computes(self) -> bool:
        """False for lists and other holders of modules, which have no forward."""
        return type(self.own).forward is not nn.Module.forward

    def children(self) -> Iterator["Part"]:
        """The modules right inside, without those of adapters and of copies that are not used."""
        for name, child in self.own.named_children():
            yield part_at(f"{self.name}.{name}".lstrip("."), child)


def part_at(name: str, module: nn.Module) -> Part:
    """The part that `module` is the outermost layer of."""
    layers = [module]
    while (inner := _inside(layers[-1])) is not None:
        layers.append(inner)
    return Part(name, tuple(layers))


def parts_of(part: Part) -> Iterator[Part]:
    """The part and all that are in it, in the order of the model; each place of a module counts."""
    yield part
    for child in part.children():
        yield from parts_of(child)


def _inside(module: nn.Module) -> nn.Module | None:
    """What a wrapper hands its inputs on to."""
    if isinstance(module, Recomputed):
        return module._checkpoint_wrapped_module
    if isinstance(module, ModulesToSaveWrapper):
        return module.modules_to_save[module.active_adapters[0]]
    return module.base_layer if isinstance(module, BaseTunerLayer) else None
