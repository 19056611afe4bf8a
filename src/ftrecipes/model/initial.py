"""The values that an adapter starts from, drawn by name.

A parameter's values follow from the seed and its name alone: they are the same for any number of
ranks, on any device, whatever else is adapted or was drawn before. The distributions are PEFT's
(0.21, tuners/lora/layer.py, reset_lora_parameters and orthogonal_init).

Shapes: r rank, I inputs and O outputs of a layer; A [r, I], B [O, r].
"""

import hashlib
import math
from collections.abc import Callable, Iterator

import peft
import torch
from peft.tuners.ia3 import IA3Layer
from peft.tuners.lora import LoraLayer, ParamWrapper
from torch import Generator, Tensor, nn

from ftrecipes.model.continued import saved_values
from ftrecipes.model.module_names import canonical_name
from ftrecipes.model.rewritten import is_rewriting


def initialise_adapter(
    adapted: peft.PeftModel,
    *,
    seed: int,
    folder: str | None = None,
    set_value: Callable[[str, Tensor], None] | None = None,
) -> None:
    """Give every parameter of a new LoRA or IA3 adapter its first value.

    `set_value` gets a canonical name and the whole value on the CPU, in the parameter's dtype, one
    after another, in the same order on all ranks; it is for models whose parameters are shares.
    Without it real parameters are written in place. With `folder` (`--from_peft_checkpoint`) the
    values are those of the file; `add_adapters` has put them into real parameters already. Other
    methods, PiSSA, OLoRA and DoRA start from whole weights or as PEFT drew them, and are left as
    they are. Called by all ranks when `set_value` is; it communicates nothing itself.
    """
    parameters = {canonical_name(name): p for name, p in adapted.named_parameters()}
    if folder is None:
        values = _first_values(adapted, seed)
    elif set_value is None:
        return
    else:
        values = saved_values(adapted, folder)
    for name, value in values:
        value = value.to(parameters[name].dtype)
        if set_value is None:
            parameters[name].data.copy_(value)
        else:
            set_value(name, value)


def _first_values(adapted: peft.PeftModel, seed: int) -> Iterator[tuple[str, Tensor]]:
    settings, adapter = adapted.active_peft_config, adapted.active_adapter
    layers = [*adapted.named_modules()]
    if isinstance(settings, peft.IA3Config):
        for path, layer in layers:
            if isinstance(layer, IA3Layer):
                name = canonical_name(f"{path}.ia3_l.{adapter}")
                yield name, torch.ones(layer.ia3_l[adapter].shape)
    if not isinstance(settings, peft.LoraConfig) or settings.use_dora or is_rewriting(settings):
        return
    for path, layer in layers:
        if isinstance(layer, LoraLayer):
            init = settings.init_lora_weights
            for part, value in _lora_values(
                layer, adapter, init, key=f"{seed}:{_key(path, layer)}"
            ):
                yield canonical_name(f"{path}.{part}"), value


def _key(path: str, layer: LoraLayer) -> str:
    """A layer's name, whatever wraps it: adapters of two parameters of a module are nested."""
    name = canonical_name(f"{path}.").replace(".base_layer.", ".")
    return name + layer.parameter_name if isinstance(layer, ParamWrapper) else name


def _lora_values(
    layer: LoraLayer, adapter: str, init: bool | str, *, key: str
) -> Iterator[tuple[str, Tensor]]:
    """(name in the layer, value) of each parameter."""
    generator = _generator(key)
    if adapter in layer.lora_embedding_A:
        yield f"lora_embedding_A.{adapter}", torch.zeros(layer.lora_embedding_A[adapter].shape)
        shape = layer.lora_embedding_B[adapter].shape
        yield f"lora_embedding_B.{adapter}", torch.randn(shape, generator=generator)
        return
    shape, b_shape = layer.lora_A[adapter].weight.shape, layer.lora_B[adapter].weight.shape
    if init == "orthogonal":
        a, b = _orthogonal(shape, b_shape, generator)
    else:
        a, b = torch.empty(shape), torch.zeros(b_shape)
        if init == "gaussian":
            nn.init.normal_(a, std=1 / layer.r[adapter], generator=generator)
        else:
            assert init is True, f"{init} is not drawn"
            nn.init.kaiming_uniform_(a, a=math.sqrt(5), generator=generator)
    yield f"lora_A.{adapter}.weight", a
    yield f"lora_B.{adapter}.weight", b
    if layer.lora_bias[adapter]:
        yield f"lora_B.{adapter}.bias", torch.zeros(b_shape[0])


def _orthogonal(a_shape: torch.Size, b_shape: torch.Size, generator: Generator) -> tuple:
    """A and B whose inner spaces are orthogonal halves of r dimensions: B A = 0, and neither is 0.

    https://datta0.github.io/posts/rethink-lora-init/#orthogonal-initialisation
    """
    (rank, inputs), (outputs, _) = a_shape, b_shape
    basis, _ = torch.linalg.qr(torch.randn(rank, rank, generator=generator))
    a = basis[0::2].T @ torch.randn(rank // 2, inputs, generator=generator)
    b = torch.randn(outputs, rank // 2, generator=generator) @ basis[1::2]
    return a / 10, b / 10


def _generator(key: str) -> Generator:
    digest = hashlib.sha256(key.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
