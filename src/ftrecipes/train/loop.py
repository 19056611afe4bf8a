"""The loop: evaluate, then for each epoch its steps, with evaluations as asked."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from ftrecipes.config.schema import TrainConfig
from ftrecipes.data.loader import Loader
from ftrecipes.optim.schedule import Schedule
from ftrecipes.report.recorder import Recorder
from ftrecipes.runtime import log
from ftrecipes.runtime.signals import Stopped
from ftrecipes.runtime.watch import Watch
from ftrecipes.train.evaluate import evaluate
from ftrecipes.train.samples import Sampler
from ftrecipes.train.state import TrainState, count_evaluation, enter_next_epoch
from ftrecipes.train.step import BatchLoss, StepResult, train_step
from ftrecipes.train.stop import NEVER, Stop
from ftrecipes.train.update import Updater


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
    sampler: Sampler | None = None
    """None = no samples."""
    save_best: Callable[[Mapping[str, int | float | None]], None] | None = None
    """Keeps the weights as they are, given the numbers of the state; None = they are not kept."""
    stop: Stop = NEVER
    """Whether a signal asked this rank to stop; then all ranks do after the same step."""

    @property
    def watch(self) -> Watch:
        """Is told what this rank does, for the others."""
        return self.batch_loss.world.watch


def train(run: Training) -> None:
    """Train to the end of the schedule, which has epochs and `max_train_step` worked in.

    Every rank calls it. Evaluates before the first step, then every `eval_every_steps` steps or
    at the end of each epoch, and in any case after the last step; never twice after one step.
    Ends sooner after `early_stopping_patience` evaluations in a row that are no better than the
    best since training began. Raises TrainingError on a loss or gradient that is not finite, and
    Stopped when a rank was asked to stop; every rank does, after the same step.
    """
    state, schedule = run.state, run.schedule
    log.info(
        f"training: steps {schedule.total_steps}, epochs {len(schedule.epoch_ends)}, "
        f"{schedule.warmup_steps} of them warm-up"
    )
    run.batch_loss.model.train()
    if state.step == 0:
        evaluate_now(run)
        sample_now(run)
    for epoch in range(state.epoch, len(schedule.epoch_ends)):
        plan = run.loader.world_plan(epoch)
        train_epoch(run, plan[state.step_in_epoch : schedule.steps_in(epoch)])
        report_epoch(run)
        # max_train_step or early stopping may end inside an epoch, which is then not over.
        if state.step_in_epoch == len(plan):
            enter_next_epoch(state)
        if state.stopped_early:
            break
    finish(run)


def train_epoch(run: Training, steps: Sequence[list[tuple[int, ...]]]) -> None:
    """The steps of an epoch that are left, with the evaluations and samples that fall due."""
    state = run.state
    eval_every = run.config.eval_every_steps
    sample_every = run.sampler.every_steps if run.sampler else 0
    for micro_batches in steps:
        take_step(run, micro_batches)
        if eval_every and state.step % eval_every == 0:
            evaluate_now(run)
        if sample_every and state.step % sample_every == 0:
            sample_now(run)
        if state.stopped_early:
            break
    if not eval_every or state.step == run.schedule.total_steps:
        evaluate_now(run)
    if not sample_every or state.stopped_early or state.step == run.schedule.total_steps:
        sample_now(run)


def take_step(run: Training, micro_batches: list[tuple[int, ...]]) -> None:
    """One optimizer step over micro-batches of all ranks, given as row ids."""
    state = run.state
    lr = run.schedule.lr_at(state.step)
    totals = run.loader.totals(micro_batches)
    run.watch.phase(f"step {state.step + 1}")
    with run.recorder.watch(state.step + 1):
        began = time.perf_counter()
        result = train_step(
            run.batch_loss,
            run.updater,
            [run.loader.micro_batch(row_ids) for row_ids in run.loader.own(micro_batches)],
            totals=totals,
            step=state.step + 1,
            lr=lr,
            sources=run.sources,
            stop=run.stop,
        )
        seconds = time.perf_counter() - began
    count_step(state, result, seconds=seconds)
    numbers = asdict(result)
    stopped_by = numbers.pop("stopped_by")
    run.recorder.step(
        step=state.step,
        epoch=state.epoch + 1,
        lr=lr,
        seconds=seconds,
        lengths=totals.lengths,
        **numbers,
    )
    if stopped_by:
        raise Stopped(stopped_by, together=True)


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
    """Evaluate unless there is nothing to evaluate on or it was just done; keep the best."""
    state = run.state
    if run.val_loader is None or state.last_eval_step == state.step:
        return
    run.watch.phase(f"evaluation after step {state.step}")
    limit = run.config.max_eval_step
    result = evaluate(run.batch_loss, run.val_loader, max_eval_step=limit, stop=run.stop)
    is_best = count_evaluation(state, result.loss)
    epoch = state.epoch + 1 if state.step else 0
    run.recorder.evaluation(step=state.step, epoch=epoch, **asdict(result))
    if not math.isfinite(result.loss):
        log.warning(
            f"The evaluation loss after step {state.step} is {result.loss}: the model is broken "
            "or its precision too low. Lower --lr, or compute in bfloat16 or float32."
        )
    if is_best and run.save_best is not None:
        run.watch.phase(f"saving the best after step {state.step}")
        with run.recorder.timed("saving"):
            run.save_best(asdict(state))
    patience = run.config.early_stopping_patience
    if 0 < patience <= state.worse_evals and state.step < run.schedule.total_steps:
        state.stopped_early = True
        run.recorder.early_stop(
            step=state.step,
            best_step=state.best_eval_step,
            best_loss=state.best_eval_loss,
            evaluations=state.worse_evals,
        )


def sample_now(run: Training) -> None:
    """Let the model answer the fixed prompts, unless there are none or it was just done."""
    state = run.state
    if run.sampler is None or state.last_sample_step == state.step:
        return
    state.last_sample_step = state.step
    run.watch.phase(f"samples after step {state.step}")
    with run.recorder.timed("sampling"):
        answers = list(run.sampler.answers())
    for prompt, answer in answers:
        run.recorder.sample(step=state.step, prompt=prompt, answer=answer)


def report_epoch(run: Training) -> None:
    """Mean training loss of the epoch so far, and the memory."""
    state = run.state
    run.watch.phase(f"report after step {state.step}")
    loss = state.epoch_loss_sum / state.epoch_tokens if state.epoch_tokens else None
    run.recorder.epoch(
        step=state.step, epoch=state.epoch + 1, loss=loss, num_tokens=state.epoch_tokens
    )


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
    if state.best_eval_loss is None:
        return
    log.info(
        f"evaluation loss: {state.first_eval_loss:.4f} before, {state.last_eval_loss:.4f} "
        f"after, lowest {state.best_eval_loss:.4f} after step {state.best_eval_step}"
    )
    if state.best_eval_loss >= state.first_eval_loss:
        log.warning(
            f"Training did not lower the evaluation loss: {state.first_eval_loss:.4f} before, at "
            f"best {state.best_eval_loss:.4f}. The model was no worse before. Lower --lr (now "
            f"{run.config.lr:g}), or give training rows that are more like the validation rows."
        )
