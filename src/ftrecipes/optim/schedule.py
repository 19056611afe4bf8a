"""How many steps a run takes and the learning rate of each, both as pure functions."""

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ftrecipes.config.errors import DataError
from ftrecipes.config.schema import TrainConfig
from ftrecipes.runtime import log

WARMUP_SHARE = 0.03
WSD_DECAY_SHARE = 0.2


def count_steps(
    steps_per_epoch: Callable[[int], int], *, num_epochs: int, max_train_step: int
) -> tuple[int, ...]:
    """Optimizer steps of each epoch that is entered, e.g. (12, 13, 5).

    `steps_per_epoch(epoch)` is asked for each epoch, because packing fills its micro-batches a
    little differently every time. `max_train_step` (0 = no limit) cuts the last epoch, and an
    epoch that would have no step left is not entered. Raises DataError when there is no step.
    """
    counts: list[int] = []
    left = max_train_step if max_train_step else math.inf
    for epoch in range(num_epochs):
        steps = min(steps_per_epoch(epoch), left)
        if steps == 0:
            break
        counts.append(int(steps))
        left -= steps
    if not counts:
        raise DataError(
            "The training rows make no step.\n"
            f"  got: {num_epochs} epochs, the first of them without a micro-batch\n"
            "  do: give at least one training row and one epoch"
        )
    return tuple(counts)


@dataclass(frozen=True)
class Schedule:
    """Learning rate of a run. `epoch_ends[e]` = steps done when epoch e is over."""

    kind: str
    peak_lr: float
    gamma: float
    warmup_steps: int
    epoch_ends: tuple[int, ...]

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return self.epoch_ends[-1]

    def steps_in(self, epoch: int) -> int:
        """Steps of one epoch."""
        return self.epoch_ends[epoch] - (self.epoch_ends[epoch - 1] if epoch else 0)

    def lr_at(self, step: int) -> float:
        """Learning rate of the update that follows `step` finished updates.

        The first is above 0 and, with `linear`, `cosine` and `wsd`, 0 is what would follow the
        last, so that no step is spent on a learning rate of 0. The peak stands at step
        `warmup_steps`.
        """
        if step < self.warmup_steps:
            return self.peak_lr * self._decay(step) * (step + 1) / (self.warmup_steps + 1)
        return self.peak_lr * self._decay(step)

    def _decay(self, step: int) -> float:
        """Factor in [0, 1] on the peak, warm-up aside."""
        left = max(0, self.total_steps - step)
        if self.kind == "constant":
            return 1.0
        if self.kind == "step":
            return self.gamma ** bisect_right(self.epoch_ends, step)
        if self.kind == "wsd":
            return min(1.0, left / max(1, round(WSD_DECAY_SHARE * self.total_steps)))
        share_left = min(1.0, left / max(1, self.total_steps - self.warmup_steps))
        if self.kind == "linear":
            return share_left
        return 0.5 * (1 - math.cos(math.pi * share_left))


def build_schedule(config: TrainConfig, epoch_steps: Sequence[int]) -> Schedule:
    """Schedule of `config` over epochs of `epoch_steps` optimizer steps (see `count_steps`).

    Warns when the warm-up is as long as the run.
    """
    epoch_ends = tuple(accumulate(epoch_steps))
    warmup_steps = config.warmup_steps
    if warmup_steps is None:
        warmup_steps = 0 if config.scheduler == "step" else round(WARMUP_SHARE * epoch_ends[-1])
    if warmup_steps >= epoch_ends[-1]:
        log.warning(
            f"--warmup_steps {warmup_steps} is not below the {epoch_ends[-1]} steps of this run: "
            f"the learning rate never reaches --lr {config.lr:g}. Lower it or train longer."
        )
    return Schedule(
        kind=config.scheduler,
        peak_lr=config.lr,
        gamma=config.gamma,
        warmup_steps=warmup_steps,
        epoch_ends=epoch_ends,
    )
