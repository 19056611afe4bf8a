"""One step: the gradients of its micro-batches, checked, clipped and turned into one update.

T = positions of a micro-batch. The loss of a step is the sum of its token losses divided by its
counted labels, which are known before the first forward. So any split of the same rows into
micro-batches gives the same gradient, and a smaller last window divides by its own tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ftrecipes.config.precision import Precision
from ftrecipes.data.rows import MicroBatch, Totals
from ftrecipes.model.forward import LossRoute
from ftrecipes.parallel.engine import Engine, OneProcess
from ftrecipes.runtime.collectives import gather_objects, sum_floats
from ftrecipes.runtime.devices import to_device
from ftrecipes.runtime.world import World
from ftrecipes.train.guard import nonfinite_error
from ftrecipes.train.stop import NEVER, Stop, elected, votes
from ftrecipes.train.update import Updater, gradient_norm, update_weights


@dataclass(frozen=True)
class BatchLoss:
    """Micro-batch -> sum of its token losses, on the model's device and in the compute dtype."""

    model: nn.Module
    route: LossRoute
    precision: Precision
    world: World
    engine: Engine = field(default_factory=OneProcess)

    def loss_sum(self, batch: MicroBatch) -> Tensor:
        """float32 scalar; differentiable where gradients are on. All ranks call it together.

        The labels stay on the host, where the route looks for those that count without a wait.
        """
        self.world.watch.beat()
        input_ids = to_device(batch.input_ids, self.world.device)
        with autocast(self.precision, self.world.device):
            return self.route.loss_sum(self.model, input_ids, batch.labels, batch.lengths)


@dataclass(frozen=True)
class StepResult:
    """Numbers of one step over all ranks, on the host; the same on every rank."""

    loss: float | None
    """The optimized loss: sum / counted tokens; None when no label counts."""
    grad_norm: float | None
    """Global L2 norm of its gradient before clipping; None when no label counts."""
    num_tokens: int
    positions: int
    rows: int
    note: str
    """Why the weights were left alone; empty after an update."""
    stopped_by: int
    """Signal that asked a rank to stop, so that this step should be the last; 0 = none."""


def autocast(precision: Precision, device: torch.device) -> torch.autocast:
    """Context of a forward: products in the compute dtype where that differs from storage."""
    dtype = getattr(torch, precision.compute)
    return torch.autocast(device.type, dtype=dtype, enabled=precision.autocast)


def train_step(
    batch_loss: BatchLoss,
    updater: Updater,
    micro_batches: Sequence[MicroBatch],
    *,
    totals: Totals,
    step: int,
    lr: float,
    sources: Sequence[str],
    stop: Stop = NEVER,
) -> StepResult:
    """Update the weights once; `step` is its number from 1, `sources` says where each row is from.

    Every rank calls it with as many micro-batches of its own, and with the `totals` of all ranks.
    Without a counted label nothing is computed and the weights stay as they are. Flat rows with the
    chunked head make the host wait for a CUDA device in one place, at the check before the update
    (float16 at its scaler too); there the ranks tell each other what each needs to know. Raises
    TrainingError, on all ranks, when the loss or the gradient is not finite; the weights are then
    still those of the step before. Gradients are None before and after.
    """
    counts = {"num_tokens": totals.num_tokens, "positions": totals.positions, "rows": totals.rows}
    if totals.num_tokens == 0:
        note = "none of its labels counts"
        return StepResult(loss=None, grad_norm=None, note=note, stopped_by=0, **counts)
    filled = [batch for batch in micro_batches if batch.lengths]
    loss_sums = add_gradients(batch_loss, updater, filled, num_tokens=totals.num_tokens)
    updater.scaler.unscale_(updater.optimizer)
    norm = gradient_norm(updater.gradients)
    # A gradient that is offloaded is on the host, where the loss is not.
    *own_sums, own_norm = torch.stack([*loss_sums, norm.to(loss_sums[0].device)]).tolist()
    # In float64 the square of a float32 is exact, and so is its root.
    told = [sum(own_sums), own_norm**2 * batch_loss.engine.squares_weight, *votes(stop)]
    loss_sum, squares, *asked = sum_floats(told, batch_loss.world)
    loss, grad_norm = loss_sum / totals.num_tokens, math.sqrt(squares)

    overflowed = math.isfinite(loss) and not math.isfinite(grad_norm)
    if not math.isfinite(loss) or (overflowed and not _can_rescale(updater.scaler)):
        raise nonfinite_error(
            step=step,
            loss=loss,
            grad_norm=grad_norm,
            lr=lr,
            rows=[sources[row] for row in _suspects(filled, own_sums, batch_loss.world)],
            half=updater.scaler.is_enabled(),
        )
    update_weights(updater, torch.full_like(norm, grad_norm), lr=lr)
    note = "a float16 gradient overflowed, so the loss scale was halved" if overflowed else ""
    stopped_by = elected(asked)
    return StepResult(loss=loss, grad_norm=grad_norm, note=note, stopped_by=stopped_by, **counts)


def add_gradients(
    batch_loss: BatchLoss,
    updater: Updater,
    micro_batches: Sequence[MicroBatch],
    *,
    num_tokens: int,
) -> list[Tensor]:
    """Put the gradient of (summed loss / `num_tokens`), times the loss scale, into .grad.

    Summed over the micro-batches of all ranks. Every micro-batch has positions, and `num_tokens` >
    0 is how many labels count on all ranks. Returns the detached float32 loss sum of each of this
    rank's.
    """
    summed = updater.narrow if len(micro_batches) > 1 else []
    for parameter in summed:
        parameter.grad_dtype = updater.sum_dtype
    loss_sums = []
    for left, batch in enumerate(micro_batches, start=1 - len(micro_batches)):
        batch_loss.engine.accumulate(is_last=left == 0)
        loss_sum = batch_loss.loss_sum(batch)
        updater.scaler.scale(loss_sum / num_tokens).backward()
        loss_sums.append(loss_sum.detach())
    for parameter in summed:
        _restore_gradient_dtype(parameter)
    return loss_sums


def _restore_gradient_dtype(parameter: nn.Parameter) -> None:
    # torch's AdamW wants gradients in the dtype of the parameter.
    gradient, parameter.grad = parameter.grad, None
    parameter.grad_dtype = parameter.dtype
    if gradient is not None:
        parameter.grad = gradient.to(parameter.dtype)


def _can_rescale(scaler: torch.amp.GradScaler) -> bool:
    # Below a scale of 1 the gradient overflows by itself; halving on would hide that.
    return scaler.is_enabled() and scaler.get_scale() > 1.0


def _suspects(
    micro_batches: Sequence[MicroBatch], loss_sums: Sequence[float], world: World
) -> list[int]:
    """Rows, of all ranks, of the micro-batches whose loss is not finite; all rows without any."""
    pairs = list(zip(micro_batches, loss_sums, strict=True))
    guilty = [batch for batch, loss_sum in pairs if not math.isfinite(loss_sum)]
    own = [[row for batch in some for row in batch.row_ids] for some in (guilty, micro_batches)]
    suspected, every = zip(*gather_objects(own, world), strict=True)
    return [row for rows in suspected for row in rows] or [row for rows in every for row in rows]
