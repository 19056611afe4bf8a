"""One step: the gradients of its micro-batches, checked, clipped and turned into one update.

T = positions of a micro-batch. The loss of a step is the sum of its token losses divided by its
counted labels, which are known before the first forward. So any split of the same rows into
micro-batches gives the same gradient, and a smaller last window divides by its own tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from ftrecipes.config.precision import Precision
from ftrecipes.config.schema import TrainConfig
from ftrecipes.data.rows import MicroBatch
from ftrecipes.model.forward import LossRoute
from ftrecipes.runtime.devices import to_device
from ftrecipes.train.guard import nonfinite_error


@dataclass(frozen=True)
class BatchLoss:
    """Micro-batch -> sum of its token losses, on the model's device and in the compute dtype."""

    model: nn.Module
    route: LossRoute
    precision: Precision
    device: torch.device

    def loss_sum(self, batch: MicroBatch) -> torch.Tensor:
        """float32 scalar; differentiable where gradients are on.

        The labels stay on the host, where the route looks for those that count without a wait.
        """
        input_ids = to_device(batch.input_ids, self.device)
        with autocast(self.precision, self.device):
            return self.route.loss_sum(self.model, input_ids, batch.labels, batch.lengths)


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

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The trainable parameters."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]


@dataclass(frozen=True)
class StepResult:
    """Numbers of one step on the host."""

    loss: float | None
    """The optimized loss: sum / counted tokens; None when no label counts."""
    grad_norm: float | None
    """Global L2 norm of its gradient before clipping; None when no label counts."""
    num_tokens: int
    positions: int
    rows: int
    note: str
    """Why the weights were left alone; empty after an update."""


def autocast(precision: Precision, device: torch.device) -> torch.autocast:
    """Context of a forward: products in the compute dtype where that differs from storage."""
    dtype = getattr(torch, precision.compute)
    return torch.autocast(device.type, dtype=dtype, enabled=precision.autocast)


def build_updater(
    optimizer: torch.optim.Optimizer,
    *,
    config: TrainConfig,
    precision: Precision,
    device: torch.device,
) -> Updater:
    """The update of `optimizer`, with the clipping of `config` and the scaler of `precision`."""
    return Updater(
        optimizer=optimizer,
        scaler=torch.amp.GradScaler(device.type, enabled=precision.loss_scaling),
        max_norm=config.gradient_clipping_threshold if config.gradient_clipping else None,
        sum_dtype=getattr(torch, precision.reduce),
    )


def train_step(
    batch_loss: BatchLoss,
    updater: Updater,
    micro_batches: Sequence[MicroBatch],
    *,
    step: int,
    lr: float,
    sources: Sequence[str],
) -> StepResult:
    """Update the weights once; `step` is its number from 1, `sources` says where each row is from.

    Without a counted label nothing is computed and the weights stay as they are. Flat rows with the
    chunked head make the host wait for a CUDA device in one place, at the check before the update
    (float16 at its scaler too). Raises TrainingError when the loss or the gradient is not finite;
    the weights are then still those of the step before. Gradients are None before and after.
    """
    filled = [batch for batch in micro_batches if batch.lengths]
    counts = {
        "num_tokens": sum(batch.num_tokens for batch in filled),
        "positions": sum(sum(batch.lengths) for batch in filled),
        "rows": sum(len(batch.row_ids) for batch in filled),
    }
    if counts["num_tokens"] == 0:
        return StepResult(loss=None, grad_norm=None, note="none of its labels counts", **counts)
    loss_sums = add_gradients(batch_loss, updater, filled)
    updater.scaler.unscale_(updater.optimizer)
    norm = gradient_norm(updater.parameters)
    *loss_values, norm_value = torch.stack([*loss_sums, norm]).tolist()
    loss = sum(loss_values) / counts["num_tokens"]

    overflowed = math.isfinite(loss) and not math.isfinite(norm_value)
    if not math.isfinite(loss) or (overflowed and not _can_rescale(updater.scaler)):
        raise nonfinite_error(
            step=step,
            loss=loss,
            grad_norm=norm_value,
            lr=lr,
            rows=[sources[row] for row in _suspects(filled, loss_values)],
            half=updater.scaler.is_enabled(),
        )
    update_weights(updater, norm, lr=lr)
    note = "a float16 gradient overflowed, so the loss scale was halved" if overflowed else ""
    return StepResult(loss=loss, grad_norm=norm_value, note=note, **counts)


def add_gradients(
    batch_loss: BatchLoss, updater: Updater, micro_batches: Sequence[MicroBatch]
) -> list[torch.Tensor]:
    """Put the gradient of (summed loss / counted labels), times the loss scale, into .grad.

    Every micro-batch has a row, and at least one label counts. Returns the detached float32 loss
    sum of each.
    """
    num_tokens = sum(batch.num_tokens for batch in micro_batches)
    narrow = [p for p in updater.parameters if p.dtype != updater.sum_dtype]
    summed = narrow if len(micro_batches) > 1 else []
    for parameter in summed:
        parameter.grad_dtype = updater.sum_dtype
    loss_sums = []
    for batch in micro_batches:
        loss_sum = batch_loss.loss_sum(batch)
        updater.scaler.scale(loss_sum / num_tokens).backward()
        loss_sums.append(loss_sum.detach())
    for parameter in summed:
        _restore_gradient_dtype(parameter)
    return loss_sums


@torch.no_grad()
def gradient_norm(parameters: Sequence[nn.Parameter]) -> torch.Tensor:
    """Global L2 norm of all gradients; float32 scalar, squares summed in float32.

    Not torch.nn.utils.get_total_norm: torch 2.13 sums bfloat16 gradients in bfloat16 results.
    """
    gradients = [p.grad for p in parameters if p.grad is not None]
    norms = [torch.linalg.vector_norm(gradient, dtype=torch.float32) for gradient in gradients]
    return torch.linalg.vector_norm(torch.stack(norms))


def update_weights(updater: Updater, norm: torch.Tensor, *, lr: float) -> None:
    """Clip the unscaled gradients by their `norm`, update with `lr`, drop the gradients."""
    if updater.max_norm is not None:
        nn.utils.clip_grads_with_norm_(updater.parameters, updater.max_norm, norm)
    for group in updater.optimizer.param_groups:
        group["lr"] = lr
    updater.scaler.step(updater.optimizer)
    updater.scaler.update()
    updater.optimizer.zero_grad(set_to_none=True)


def _restore_gradient_dtype(parameter: nn.Parameter) -> None:
    # torch's AdamW wants gradients in the dtype of the parameter.
    gradient, parameter.grad = parameter.grad, None
    parameter.grad_dtype = parameter.dtype
    if gradient is not None:
        parameter.grad = gradient.to(parameter.dtype)


def _can_rescale(scaler: torch.amp.GradScaler) -> bool:
    # Below a scale of 1 the gradient overflows by itself; halving on would hide that.
    return scaler.is_enabled() and scaler.get_scale() > 1.0


def _suspects(micro_batches: Sequence[MicroBatch], loss_sums: Sequence[float]) -> list[int]:
    """Rows of the micro-batches whose loss is not finite; all rows when every loss is finite."""
    pairs = list(zip(micro_batches, loss_sums, strict=True))
    guilty = [batch for batch, loss_sum in pairs if not math.isfinite(loss_sum)]
    return [row for batch in guilty or micro_batches for row in batch.row_ids]
