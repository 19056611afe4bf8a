"""What is known of a weight that is packed, beside the packed numbers: it lies with the module.

A weight in 4 bits is stored as [n, 1] numbers of a storage dtype and a `QuantState` of statistics.
bitsandbytes keeps both in one tensor, a `Params4bit`; a sharded parameter is a plain DTensor, and a
gathered one a plain tensor. The module knows the rest in all of these cases, and without numbers
(on the meta device) too.
"""

from dataclasses import dataclass

import bitsandbytes as bnb
import torch
from bitsandbytes.functional import QuantState
from torch import Tensor, nn

from ftrecipes.config.sections import QuantizationConfig
from ftrecipes.model.module_names import canonical_name

BLOCKSIZE = 64  # weights that share one scale: what bitsandbytes uses unless told otherwise


@dataclass(frozen=True, kw_only=True)
class Packing:
    """How a weight is packed in 4 bits."""

    shape: torch.Size  # of the weight that the packed numbers stand for
    quant_type: str  # nf4 or fp4
    double_quant: bool
    storage: torch.dtype
    blocksize: int = BLOCKSIZE
    transposed: bool = False  # whether the files hold it the other way round (Conv1D)

    @property
    def rows(self) -> int:
        """The n of the packed [n, 1]."""
        return (self.shape.numel() + 1) // (2 * self.storage.itemsize)

    def empty(self, module: nn.Module | None = None) -> bnb.nn.Params4bit:
        """A packed parameter of `module` without numbers, on the meta device."""
        return bnb.nn.Params4bit(
            torch.empty(self.rows, 1, dtype=self.storage, device="meta"),
            requires_grad=False,
            blocksize=self.blocksize,
            compress_statistics=self.double_quant,
            quant_type=self.quant_type,
            quant_storage=self.storage,
            bnb_quantized=True,
            module=module,
        )


def packing_of(
    weight: bnb.nn.Params4bit,
    quantization: QuantizationConfig,
    *,
    shape: torch.Size,
    transposed: bool = False,
) -> Packing:
    """The packing that `quantization` asks for; that of `weight`, where it has numbers, must be so.

    `shape` is that of the weight it stands for.
    """
    asked = Packing(
        shape=shape,
        quant_type=quantization.quant_type,
        double_quant=quantization.use_double_quant,
        storage=getattr(torch, quantization.quant_storage),
        transposed=transposed,
    )
    if weight.is_meta:
        return asked
    state = weight.quant_state
    got = Packing(
        shape=state.shape,
        quant_type=state.quant_type,
        double_quant=state.nested,
        storage=weight.dtype,
        blocksize=state.blocksize,
        transposed=transposed,
    )
    same = (got.shape, got.quant_type, got.double_quant, got.storage) == (
        *(asked.shape, asked.quant_type, asked.double_quant, asked.storage),
    )
    assert same, f"quantized as {got}, asked for {asked}"
    return got


class PackedModule(nn.Module):
    """Base of modules some of whose parameters are packed in 4 bits."""

    packings: dict[str, Packing]  # own name of a packed parameter -> how

    def state_of(self, name: str) -> QuantState | None:
        """The statistics of a packed parameter; None before its numbers are there."""
        raise NotImplementedError

    def set_state(self, name: str, state: QuantState) -> None:
        """Give a packed parameter the statistics of its numbers."""
        raise NotImplementedError

    def unpacked(self, name: str) -> Tensor:
        """The weight that a packed parameter stands for, in the dtype it was quantized from.

        The parameter is whole: not sharded, or gathered now.
        """
        # the state is the module's: a weight that has been sharded no longer has one
        return bnb.functional.dequantize_4bit(self._parameters[name].data, self.state_of(name))


@dataclass(frozen=True, kw_only=True)
class Packed(Packing):
    """A packed parameter of a model: how it is packed, and whose it is."""

    module: PackedModule
    name: str  # the parameter's own name in the module

    @property
    def parameter(self) -> nn.Parameter:
        """The packed numbers [n, 1]; the attribute of that name may be what they stand for."""
        return self.module._parameters[self.name]

    @property
    def state(self) -> QuantState | None:
        """Its statistics; None before its numbers are there."""
        return self.module.state_of(self.name)

    def set_state(self, state: QuantState) -> None:
        """Give it the statistics of its numbers: whole ones, also where the numbers are sharded."""
        self.module.set_state(self.name, state)


def packed_parameters(model: nn.Module) -> dict[str, Packed]:
    """Every parameter in 4 bits by its canonical name; the same before and after sharding."""
    return {
        _join(path, name): Packed(**vars(packing), module=module, name=name)
        for path, module in model.named_modules()
        if isinstance(module, PackedModule)
        for name, packing in module.packings.items()
    }


def _join(path: str, name: str) -> str:
    return canonical_name(f"{path}.{name}".lstrip("."))


def packed_sizes(model: nn.Module) -> dict[str, int]:
    """Canonical name of each packed parameter, in 4 or 8 bits -> weights that it stands for."""
    sizes = {name: packed.shape.numel() for name, packed in packed_parameters(model).items()}
    for path, module in model.named_modules():
        if isinstance(module, bnb.nn.Linear8bitLt):
            sizes[_join(path, "weight")] = module.in_features * module.out_features
    return sizes


def weight_counts(model: nn.Module) -> dict[str, int]:
    """Canonical name of each parameter -> weights that it stands for. Tied ones count once."""
    packed = packed_sizes(model)
    names = ((canonical_name(name), parameter) for name, parameter in model.named_parameters())
    return {name: packed.get(name, parameter.numel()) for name, parameter in names}
