"""Train, and keep what came of it: the best while it goes, the last at the end."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from ftrecipes.checkpoint.record import RunRecord
from ftrecipes.checkpoint.result import Numbers, Result
from ftrecipes.config.errors import TrainingError
from ftrecipes.config.precision import Precision
from ftrecipes.data.prompts import Prompt
from ftrecipes.data.rows import TokenRows
from ftrecipes.runtime import log
from ftrecipes.runtime.signals import Stopped, stops_deferred, stops_noted
from ftrecipes.runtime.world import World
from ftrecipes.train.build import open_training
from ftrecipes.train.loop import train
from ftrecipes.train.state import TrainState
from ftrecipes.train.stop import NEVER, Stop


def train_and_save(
    result: Result,
    rows: TokenRows,
    val_rows: TokenRows | None,
    prompts: Sequence[Prompt],
    *,
    folder: Path,
    record: RunRecord,
    precision: Precision,
) -> TrainState:
    """Train the model of `result`, and put what came of it into `folder`, however it ended.

    All ranks call it. An error of one of several ends them without a result: its shares are lost.
    """
    config, world, state = result.config, result.world, TrainState()

    def save() -> None:
        # While `folder` holds an earlier result, this run's record and `best` are elsewhere, and
        # the `best` in it is the earlier run's.
        keep_best = record.folder == folder
        with stops_deferred():
            if result.save(folder, state=asdict(state), keep_best=keep_best):
                record.settle()

    def save_best(numbers: Numbers) -> None:
        with stops_deferred():
            result.save_best(record.folder, state=numbers)

    with (
        _stopping(world) as stop,
        open_training(
            *(config, result.model, rows, val_rows),
            tokenizer=result.tokenizer,
            prompts=prompts,
            save_best=save_best if config.train.save_model and config.saving.best else None,
            metrics=record.folder / "metrics.jsonl",
            precision=precision,
            world=world,
            state=state,
            engine=result.engine,
            stop=stop,
        ) as training,
    ):
        # Saved inside: wandb may take a minute to close, and whoever stops a run may not wait.
        try:
            train(training)
        except BaseException as error:
            # Whatever ended the training: its steps may be the work of hours.
            if state.updates and _is_everyones(error, world):
                log.warning(f"training ended after step {state.step}; saving what was trained")
                result.engine.settle()
                save()
            raise
        world.watch.phase("save the result")
        save()
    return state


@contextmanager
def _stopping(world: World) -> Iterator[Stop]:
    """One process is interrupted by a signal at once; several agree on a step to stop after."""
    if world.size == 1:
        yield NEVER
    else:
        with stops_noted() as stop:
            yield stop


def _is_everyones(error: BaseException, world: World) -> bool:
    """Whether all ranks stand here with the same error, so that they can save together.

    One that saved alone would meet the others in a collective of another kind.
    """
    if isinstance(error, Stopped):
        return error.together or world.size == 1
    return world.size == 1 or isinstance(error, TrainingError)
