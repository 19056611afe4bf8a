"""What must survive a restart, and nothing else."""

import math
from dataclasses import dataclass


@dataclass
class TrainState:
    """Place and counts of a run: plain numbers, so that `asdict` and JSON carry all of it.

    The learning rate and the rows of a step are not in it: both are pure functions of the place.
    """

    epoch: int = 0
    """Epochs finished."""
    step_in_epoch: int = 0
    """Optimizer steps finished in the epoch that runs."""
    step: int = 0
    """Optimizer steps finished in all, those without an update counted."""
    updates: int = 0
    """Steps that changed the weights."""
    tokens: int = 0
    """Labels that counted so far."""
    positions: int = 0
    """Positions processed so far, whether their label counted or not."""
    epoch_loss_sum: float = 0.0
    """Sum of the token losses of the epoch that runs."""
    epoch_tokens: int = 0
    """Counted labels of the epoch that runs."""
    train_seconds: float = 0.0
    """Time spent in steps; evaluations are not in it."""
    first_eval_loss: float | None = None
    """Evaluation loss before the first step."""
    last_eval_loss: float | None = None
    """Newest evaluation loss."""
    last_eval_step: int | None = None
    """Step it was taken after."""
    best_eval_loss: float | None = None
    """Lowest finite evaluation loss since training began; the one before it does not count."""
    best_eval_step: int | None = None
    """Step it was taken after."""
    worse_evals: int = 0
    """Evaluations in a row since then that were no better."""
    stopped_early: bool = False
    """Whether those were as many as `early_stopping_patience` allows, before the last step."""
    last_sample_step: int | None = None
    """Step after which the fixed prompts were answered last."""


def count_evaluation(state: TrainState, loss: float) -> bool:
    """Bring the state up to date after an evaluation; True for the best since training began."""
    state.last_eval_loss, state.last_eval_step = loss, state.step
    if state.step == 0:
        state.first_eval_loss = loss
    if state.updates == 0:
        return False
    is_best = math.isfinite(loss) and (state.best_eval_loss is None or loss < state.best_eval_loss)
    if is_best:
        state.best_eval_loss, state.best_eval_step = loss, state.step
        state.worse_evals = 0
    elif state.best_eval_loss is not None:
        state.worse_evals += 1
    return is_best


def enter_next_epoch(state: TrainState) -> None:
    """The epoch that ran is over."""
    state.epoch += 1
    state.step_in_epoch = 0
    state.epoch_loss_sum = 0.0
    state.epoch_tokens = 0
