"""Gradients into new weights: their norm, clipping, the optimizer, the loss scale of float16."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ftrecipes.config.precision import Precision
from ftrecipes.config.schema import TrainConfig
from ftrecipes.parallel.engine import Engine, OneProcess


@dataclass(frozen=True)
class Updater:
    """What turns gradients into new weights."""

    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    """Passes everything through unless the step computes in float16."""
    max_norm: float | None
    """Largest global L2 norm of the gradient; None = not clipped."""
    sum_dtype: torch.dtype
    """Micro-batches add their gradients up in this dtype."""
    engine: Engine = field(default_factory=OneProcess)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trainable parameters."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    @property
    def gradients(self) -> list[Tensor]:
        """What this rank has of the gradients of the parameters that have one."""
        return [self.engine.local(p.grad) for p in self.parameters if p.grad is not None]

    @property
    def narrow(self) -> list[nn.Parameter]:
        """Parameters whose gradients torch would add up in less than `sum_dtype`.

        Not those in shares: FSDP adds up in the dtype that it reduces in.
        """
        whole = [p for p in self.parameters if self.engine.local(p) is p]
        return [p for p in whole if p.dtype != self.sum_dtype]


def build_updater(
    optimizer: torch.optim.Optimizer,
    *,
    config: TrainConfig,
    precision: Precision,
    device: torch.device,
    engine: Engine | None = None,
) -> Updater:
    """The update of `optimizer`, with the clipping of `config` and the scaler of `precision`."""
    return Updater(
        optimizer=optimizer,
        scaler=torch.amp.GradScaler(device.type, enabled=precision.loss_scaling),
        max_norm=config.gradient_clipping_threshold if config.gradient_clipping else None,
        sum_dtype=getattr(torch, precision.reduce),
        engine=engine or OneProcess(),
    )


@torch.no_grad()
def gradient_norm(gradients: Sequence[Tensor]) -> Tensor:
    """L2 norm of these together; float32 scalar, squares summed in float32.

    Not torch.nn.utils.get_total_norm: torch 2.13 sums bfloat16 gradients in bfloat16 results.
    """
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in gradients]
    return torch.linalg.vector_norm(torch.stack(norms))


def update_weights(updater: Updater, norm: Tensor, *, lr: float) -> None:
    """Clip the unscaled gradients by their global `norm`, update with `lr`, drop the gradients."""
    if updater.max_norm is not None:
        nn.utils.clip_grads_with_norm_(updater.parameters, updater.max_norm, norm)
    for group in updater.optimizer.param_groups:
        group["lr"] = lr
    updater.scaler.step(updater.optimizer)
    updater.scaler.update()
    updater.optimizer.zero_grad(set_to_none=True)
