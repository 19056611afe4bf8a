"""What must survive a restart, and nothing else."""

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
