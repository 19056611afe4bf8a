"""Experts of a mixture whose weights are packed in 4 bits, and computed on exactly as dequantized.

transformers keeps the experts of a layer as three-dimensional parameters of one module, which
bitsandbytes leaves at full size. Here such a parameter is a `Params4bit` under its own name; the
attribute of that name is the dequantized weight, so that the module's own forward (whatever it
does) computes on it. The forward runs again in the backward, alone or with the block around it: of
all layers together only packed weights stay in memory, and of one layer at a time the dequantized
ones.

Shapes: E experts, I inputs and O outputs of one of them; a weight is [E, O, I] or [E, I, O].
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial

import bitsandbytes as bnb
import torch
from bitsandbytes.functional import QuantState
from peft.tuners.lora.layer import ParamWrapper
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint
from transformers import BitsAndBytesConfig

from ftrecipes.config.errors import ModelError
from ftrecipes.config.sections import QuantizationConfig
from ftrecipes.model.packed import PackedModule, Packing, packing_of

# Below this share of all weights it does not matter how something is stored.
_LARGE = 0.05


def expert_weights(module: nn.Module) -> list[str]:
    """Names of the module's own parameters that hold the weights of experts; usually none."""
    if "Experts" not in type(module).__name__:
        return []
    return [name for name, p in module.named_parameters(recurse=False) if p.dim() == 3]


def check_experts(model: nn.Module) -> None:
    """Raise ModelError when experts are kept in a way that can not be packed. Shapes suffice."""
    total = sum(parameter.numel() for parameter in model.parameters())
    layers = Counter(type(module) for module in model.modules())
    for path, module in model.named_modules():
        if "Expert" not in type(module).__name__ or isinstance(module, nn.Linear):
            continue
        packable = expert_weights(module)
        for name, parameter in module.named_parameters(recurse=False):
            size = parameter.numel() * layers[type(module)]
            if name not in packable and size > _LARGE * total:
                raise ModelError(
                    f"--quantization 4bit: not possible for the experts of {type(model).__name__}."
                    f"\n  got: {path}.{name} of shape {tuple(parameter.shape)}\n"
                    "  expected: experts as linear layers, or as one three-dimensional parameter\n"
                    "  do: leave --quantization out, or choose another model"
                )


def pack(weight: Tensor, config: BitsAndBytesConfig) -> bnb.nn.Params4bit:
    """The weight [E, ., .] quantized as `config` says, on the device it is on."""
    packed = bnb.nn.Params4bit(
        weight,
        requires_grad=False,
        compress_statistics=config.bnb_4bit_use_double_quant,
        quant_type=config.bnb_4bit_quant_type,
        quant_storage=config.bnb_4bit_quant_storage,
    )
    return packed.to(weight.device)


class _PackedExperts(PackedModule):
    """First base of an experts module with packed weights; the second is the module's own class."""

    def start(self, packings: dict[str, Packing], compute: torch.dtype) -> None:
        """What the module's own class has no place for."""
        self.packings = packings
        self.states = {name: self._parameters[name].quant_state for name in packings}
        self.compute = compute
        self.updates: dict[str, list] = {}  # name -> low-rank updates while an adapter is active
        self.dequantized: dict[str, Tensor] = {}  # name -> weight while the forward runs
        self.runs_again_alone = True

    def weight_of(self, name: str) -> Tensor:
        """The dequantized weight, without the updates of adapters outside of a forward.

        Without numbers it has the shape and the dtype only. That of a shard is the shard itself.
        """
        if name in self.dequantized:
            return self.dequantized[name]
        packed = self._parameters[name]
        if isinstance(packed, DTensor):  # FSDP2 looks for its shard under this name
            return packed
        if packed.is_meta:
            return torch.empty(self.packings[name].shape, dtype=self.compute, device="meta")
        return self.unpacked(name).to(self.compute)

    def state_of(self, name: str) -> QuantState | None:
        return self.states[name]

    def set_state(self, name: str, state: QuantState) -> None:
        self.states[name] = state
        if isinstance(self._parameters[name], bnb.nn.Params4bit):
            self._parameters[name].quant_state = state

    def forward(self, hidden_states: Tensor, *args, **kwargs) -> Tensor:
        """The class's own forward, on dequantized weights and the updates of active adapters."""
        # the updates are arguments: in the backward no adapter is active
        arguments = (dict(self.updates), hidden_states, *args)
        if not (self.runs_again_alone and torch.is_grad_enabled()):
            return self.compute_on(*arguments, **kwargs)
        return checkpoint(self.compute_on, *arguments, use_reentrant=False, **kwargs)

    def compute_on(self, updates: dict[str, list], hidden_states: Tensor, *args, **kwargs):
        """As `forward`; under autocast it is autocast that picks the dtype of the inputs."""
        dtype = hidden_states.dtype
        if not torch.is_autocast_enabled(hidden_states.device.type):
            hidden_states = hidden_states.to(self.compute)
        for name in self.packed_names:
            self.dequantized[name] = _updated(self.weight_of(name), updates.get(name, []))
        try:
            return super().forward(hidden_states, *args, **kwargs).to(dtype)
        finally:
            self.dequantized.clear()


def _updated(weight: Tensor, factors: list[tuple[Tensor, Tensor, float]]) -> Tensor:
    with torch.autocast(weight.device.type, enabled=False):
        for left, right, scale in factors:
            weight = torch.baddbmm(weight, left.to(weight), right.to(weight), alpha=scale)
    return weight


@cache
def _packed_class(own: type, names: tuple[str, ...]) -> type:
    weights = {name: property(partial(_PackedExperts.weight_of, name=name)) for name in names}
    return type(f"Packed{own.__name__}", (_PackedExperts, own), {"packed_names": names} | weights)


def open_packed(model: nn.Module, quantization: QuantizationConfig, compute: torch.dtype) -> None:
    """Let modules with packed experts compute on them, in the dtype `compute`."""
    for module in model.modules():
        packings = {
            name: packing_of(parameter, quantization, shape=shape)
            for name, parameter in module.named_parameters(recurse=False)
            if isinstance(parameter, bnb.nn.Params4bit) and len(shape := _shape(parameter)) == 3
        }
        if packings:
            module.__class__ = _packed_class(type(module), tuple(packings))
            module.start(packings, compute)


def leave_recomputing_to(modules: Iterable[nn.Module]) -> None:
    """Packed experts inside of `modules`, whose forwards run again in the backward, run with them.

    Running again by themselves too, they would be computed three times in a step.
    """
    for module in modules:
        for part in module.modules():
            if isinstance(part, _PackedExperts):
                part.runs_again_alone = False


def _shape(parameter: bnb.nn.Params4bit) -> torch.Size:
    """Of the weight that it stands for; one without numbers has not been packed yet."""
    return parameter.shape if parameter.is_meta else parameter.quant_state.shape


class PackedParamWrapper(ParamWrapper):
    """PEFT's adapter of a three-dimensional parameter, when that is packed.

    PEFT 0.21 swaps the parameter itself for the updated one while the forward runs, which would
    leave the dequantized one behind.
    """

    def get_param(self) -> Tensor:
        """Shape, dtype and device of the weight, which PEFT asks for in each forward."""
        experts = self.get_base_layer()
        name = self.parameter_name
        anything = torch.empty(1, dtype=experts.compute, device=experts._parameters[name].device)
        return anything.expand(experts.packings[name].shape)

    @contextmanager
    def _activate_lora(self, active_adapters: list[str]) -> Iterator[None]:
        experts = self.get_base_layer()
        experts.updates[self.parameter_name] = [
            self.get_delta_factors(name) for name in active_adapters if name in self.lora_A
        ]
        try:
            yield
        finally:
            del experts.updates[self.parameter_name]


def adapt_packed(model: nn.Module) -> None:
    """After adapters were added or read: let those on packed experts know that they are packed."""
    for module in model.modules():
        if isinstance(module, ParamWrapper) and isinstance(module.get_base_layer(), _PackedExperts):
            module.__class__ = PackedParamWrapper
