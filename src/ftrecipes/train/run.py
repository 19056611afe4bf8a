"""Train, and keep what came of it: the best while it goes, the last at the end."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from ftrecipes.checkpoint.record import RunRecord
from ftrecipes.checkpoint.result import Numbers, Result
from ftrecipes.config.precision import Precision
from ftrecipes.data.prompts import Prompt
from ftrecipes.data.rows import TokenRows
from ftrecipes.runtime import log
from ftrecipes.runtime.signals import stops_deferred
from ftrecipes.runtime.world import World
from ftrecipes.train.build import open_training
from ftrecipes.train.loop import train
from ftrecipes.train.state import TrainState


def train_and_save(
    result: Result,
    rows: TokenRows,
    val_rows: TokenRows | None,
    prompts: Sequence[Prompt],
    *,
    folder: Path,
    record: RunRecord,
    precision: Precision,
    world: World,
) -> TrainState:
    """Train the model of `result`, and put what came of it into `folder`, however it ended."""
    config, state = result.config, TrainState()

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

    with open_training(
        *(config, result.model, rows, val_rows),
        tokenizer=result.tokenizer,
        prompts=prompts,
        save_best=save_best if config.train.save_model and config.saving.best else None,
        metrics=record.folder / "metrics.jsonl",
        precision=precision,
        world=world,
        state=state,
    ) as training:
        # Saved inside: wandb may take a minute to close, and whoever stops a run may not wait.
        try:
            train(training)
        except BaseException:
            # Whatever ended the training: its steps may be the work of hours.
            if state.updates:
                log.warning(f"training ended after step {state.step}; saving what was trained")
                save()
            raise
        save()
    return state
