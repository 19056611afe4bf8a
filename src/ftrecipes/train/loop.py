"""The loop: evaluate, then for each epoch its steps, with evaluations as asked."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ftrecipes.config.schema import TrainConfig
from ftrecipes.data.loader import Loader
from ftrecipes.optim.schedule import Schedule
from ftrecipes.report.recorder import Recorder
from ftrecipes.runtime import log
from ftrecipes.train.evaluate import evaluate
from ftrecipes.train.state import TrainState
from ftrecipes.train.step import BatchLoss, StepResult, Updater, train_step


@dataclass(frozen=True)
class Training:
    """What the loop works with, all of it built beforehand."""

    batch_loss: BatchLoss
    updater: Updater
    schedule: Schedule
    config: TrainConfig
    loader: Loader
    sources: Sequence[str]
    """Where each training row came from, for messages."""
    val_loader: Loader | None
    """None = no evaluation."""
    recorder: Recorder
    state: TrainState
    """Where to go on; a new TrainState starts at the beginning. The loop keeps it up to date, so
    after an interrupt it says how far the weights have come."""


def train(run: Training) -> None:
    """Train to the end of the schedule, which has epochs and `max_train_step` worked in.

    Every rank calls it. Evaluates before the first step, then every `eval_every_steps` steps or
    at the end of each epoch, and in any case after the last step; never twice after one step.
    Raises TrainingError on a loss or gradient that is not finite.
    """
    state, schedule = run.state, run.schedule
    log.info(
        f"training: {schedule.total_steps} steps in {len(schedule.epoch_ends)} epochs, "
        f"{schedule.warmup_steps} of them warm-up"
    )
    run.batch_loss.model.train()
    if state.step == 0:
        evaluate_now(run)
    for epoch in range(state.epoch, len(schedule.epoch_ends)):
        plan = run.loader.step_plan(epoch)
        for micro_batches in plan[state.step_in_epoch : schedule.steps_in(epoch)]:
            take_step(run, micro_batches)
            if run.config.eval_every_steps and state.step % run.config.eval_every_steps == 0:
                evaluate_now(run)
        if not run.config.eval_every_steps or state.step == schedule.total_steps:
            evaluate_now(run)
        report_epoch(run)
        # max_train_step may stop inside an epoch, which is then not over.
        if state.step_in_epoch == len(plan):
            enter_next_epoch(state)
    finish(run)


def take_step(run: Training, micro_batches: list[tuple[int, ...]]) -> None:
    """One optimizer step over micro-batches given as row ids."""
    state = run.state
    began = time.perf_counter()
    lr = run.schedule.lr_at(state.step)
    result = train_step(
        run.batch_loss,
        run.updater,
        [run.loader.micro_batch(row_ids) for row_ids in micro_batches],
        step=state.step + 1,
        lr=lr,
        sources=run.sources,
    )
    seconds = time.perf_counter() - began
    count_step(state, result, seconds=seconds)
    run.recorder.step(
        step=state.step, epoch=state.epoch + 1, lr=lr, seconds=seconds, **asdict(result)
    )


def count_step(state: TrainState, result: StepResult, *, seconds: float) -> None:
    """Bring the state up to date after a step."""
    state.step += 1
    state.step_in_epoch += 1
    state.updates += not result.note
    state.tokens += result.num_tokens
    state.positions += result.positions
    state.train_seconds += seconds
    if result.loss is not None:
        state.epoch_loss_sum += result.loss * result.num_tokens
        state.epoch_tokens += result.num_tokens


def evaluate_now(run: Training) -> None:
    """Evaluate unless there is nothing to evaluate on or it was just done."""
    state = run.state
    if run.val_loader is None or state.last_eval_step == state.step:
        return
    result = evaluate(run.batch_loss, run.val_loader, max_eval_step=run.config.max_eval_step)
    if state.step == 0:
        state.first_eval_loss = result.loss
    state.last_eval_loss, state.last_eval_step = result.loss, state.step
    if not math.isfinite(result.loss):
        log.warning(
            f"The evaluation loss after step {state.step} is {result.loss}: the model is broken "
            "or its precision too low. Lower --lr, or compute in bfloat16 or float32."
        )
    elif state.best_eval_loss is None or result.loss < state.best_eval_loss:
        state.best_eval_loss, state.best_eval_step = result.loss, state.step
    epoch = state.epoch + 1 if state.step else 0
    run.recorder.evaluation(step=state.step, epoch=epoch, **asdict(result))


def report_epoch(run: Training) -> None:
    """Mean training loss of the epoch so far, and the memory."""
    state = run.state
    loss = state.epoch_loss_sum / state.epoch_tokens if state.epoch_tokens else None
    run.recorder.epoch(
        step=state.step, epoch=state.epoch + 1, loss=loss, num_tokens=state.epoch_tokens
    )


def enter_next_epoch(state: TrainState) -> None:
    """The epoch that ran is over."""
    state.epoch += 1
    state.step_in_epoch = 0
    state.epoch_loss_sum = 0.0
    state.epoch_tokens = 0


def finish(run: Training) -> None:
    """Totals of the run, and a warning when nothing was trained."""
    state = run.state
    if state.updates == 0:
        log.warning(
            f"None of the {state.step} steps changed the weights: what is saved equals what was "
            "loaded. The notes in metrics.jsonl say why."
        )
    run.recorder.end(
        step=state.step,
        tokens=state.tokens,
        positions=state.positions,
        seconds=state.train_seconds,
    )
    if state.best_eval_loss is not None:
        log.info(
            f"evaluation loss: {state.first_eval_loss:.4f} before, {state.last_eval_loss:.4f} "
            f"after, lowest {state.best_eval_loss:.4f} after step {state.best_eval_step}"
        )
