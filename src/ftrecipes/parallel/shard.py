"""Cut a finished model into shares: torch FSDP2 over the units of a model."""

from collections.abc import Sequence

import bitsandbytes as bnb
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from ftrecipes.config.errors import ModelError
from ftrecipes.config.sections import FsdpConfig
from ftrecipes.parallel.engine import Sharded
from ftrecipes.parallel.wrap import Unit
from ftrecipes.parallel.wrap_report import kept_bytes


def shard(
    model: nn.Module,
    units: Sequence[Unit],
    *,
    mesh: DeviceMesh,
    fsdp: FsdpConfig,
    compute: torch.dtype | None,
) -> Sharded:
    """Replace every parameter by a DTensor of this rank's rows, and say how to compute with it.

    Called by all ranks with equal models, after adapters and recomputing. Works on the meta device,
    where nothing is read or moved, and on real tensors, which must be on the device of the mesh.
    `compute`: dtype that gathered parameters are cast to; None where they all have the right one.
    Gradients are summed over ranks, in float32, and not divided. Raises ModelError when a unit
    trains parameters of several dtypes, and for packed weights that `compute` would cast.
    """
    taken: set[int] = set()
    for unit in units:
        _check_dtypes(unit, compute, taken=taken)
        taken |= {id(p) for module in unit.modules for p in module.parameters()}
    policy = MixedPrecisionPolicy(
        param_dtype=compute, reduce_dtype=torch.float32, cast_forward_inputs=False
    )
    pinned = mesh.device_type != "cpu"
    offload = CPUOffloadPolicy(pin_memory=pinned) if fsdp.cpu_offload else OffloadPolicy()
    home = torch.device("cpu" if fsdp.cpu_offload else mesh.device_type)
    everything_kept = fsdp.sharding_strategy == "SHARD_GRAD_OP"
    sharded: list[FSDPModule] = []
    for unit in units:
        for module in unit.modules:
            fully_shard(
                module,
                mesh=mesh,
                reshard_after_forward=not everything_kept and unit.kind in ("block", "embedding"),
                mp_policy=policy,
                offload_policy=offload,
            )
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            if type(module).forward is nn.Embedding.forward:  # some have a norm or a scale besides
                module.set_unshard_in_backward(False)  # its gradient does not depend on its rows
            sharded.append(module)
    heads = [module for unit in units if unit.kind == "head" for module in unit.modules]
    head = heads[0] if heads else None
    sums_once = _sums_once(model, ranks=mesh["shard"].size())
    return Sharded(sharded, head=head, mesh=mesh, home=home, sums_once=sums_once)


def _sums_once(model: nn.Module, *, ranks: int) -> bool:
    """Whether the gradients of a step, whole and in float32, take no more memory than the shares.

    Those of the rank that keeps most, so that all ranks, whose shares differ, sum alike.
    """
    whole = sum(
        4 * parameter.numel() for parameter in model.parameters() if parameter.requires_grad
    )
    return whole <= sum(part for part, _ in kept_bytes(model, ranks=ranks).values())


def _check_dtypes(unit: Unit, compute: torch.dtype | None, *, taken: set[int]) -> None:
    """Of the unit's parameters that are not `taken` by those before it."""
    pairs = [pair for module in unit.modules for pair in module.named_parameters()]
    named = [(name, parameter) for name, parameter in pairs if id(parameter) not in taken]
    trained = {p.dtype: name for name, p in named if p.requires_grad}
    where = f"{unit.kind} {unit.name or 'of the model'}"
    if len(trained) > 1:
        got = ", ".join(f"{name} is {dtype}" for dtype, name in trained.items())
        raise ModelError(
            f"Parameters that are trained together have several dtypes ({where}).\n"
            f"  got: {got}\n  expected: one dtype, because their gradients travel as one\n"
            "  do: report this model; --enable_fsdp needs trained parameters of one dtype"
        )
    for name, parameter in named:
        packed = isinstance(parameter, bnb.nn.Params4bit) and parameter.is_floating_point()
        if packed and compute not in (None, parameter.dtype):
            raise ModelError(
                f"Packed weights would be cast like numbers ({where}, {name}).\n"
                f"  got: storage {parameter.dtype}, compute {compute}\n"
                "  expected: storage in uint8, or in the dtype of the computation\n"
                "  do: use --quantization.quant_storage uint8"
            )
