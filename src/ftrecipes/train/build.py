"""Put together what the loop works with."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from torch import nn
from transformers import PreTrainedTokenizerBase

from ftrecipes.config.precision import Precision
from ftrecipes.config.schema import RunConfig, TrainConfig
from ftrecipes.data.loader import FEW_STEPS, Loader, loader_of
from ftrecipes.data.prompts import Prompt
from ftrecipes.data.rows import TokenRows
from ftrecipes.model.adapters import trainable_parameters
from ftrecipes.model.generation import attention_of
from ftrecipes.optim.optimizer import build_optimizer
from ftrecipes.optim.schedule import build_schedule, count_steps
from ftrecipes.parallel.engine import Engine, OneProcess
from ftrecipes.report.setup import build_recorder
from ftrecipes.runtime import log
from ftrecipes.runtime.world import World
from ftrecipes.train.loop import Training
from ftrecipes.train.probe import choose_route
from ftrecipes.train.samples import Sampler
from ftrecipes.train.state import TrainState
from ftrecipes.train.step import BatchLoss, autocast
from ftrecipes.train.stop import NEVER, Stop
from ftrecipes.train.update import build_updater


@contextmanager
def open_training(
    config: RunConfig,
    model: nn.Module,
    rows: TokenRows,
    val_rows: TokenRows | None,
    *,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt] = (),
    save_best: Callable[[Mapping[str, int | float | None]], None] | None = None,
    metrics: Path,
    precision: Precision,
    world: World,
    state: TrainState,
    engine: Engine | None = None,
    stop: Stop = NEVER,
) -> Iterator[Training]:
    """Route, batches, schedule, optimizer and recorder of a run over `rows`.

    Every rank opens it, with the same rows. `engine` is what runs a model in shares; None for one
    that is whole. `stop` says whether a signal asked this rank to stop, where none interrupts it.
    `prompts` are answered as `config.samples` says. `save_best` keeps the weights as they are, each
    time that an evaluation is the best so far; it is given the numbers of the state.
    `metrics` (metrics.jsonl) and the progress are open inside. Raises DataError and ModelError when
    there is nothing to train on or nothing to train.
    """
    train = config.train
    engine = engine or OneProcess()
    # The attention before the probe, which sets it.
    when = {"every_steps": config.samples.every_steps, "attention": attention_of(model)}
    batch_loss = _batch_loss(model, rows, precision=precision, world=world, engine=engine)
    own_loader = partial(loader_of, config, rank=world.rank, world_size=world.size)
    loader = own_loader(rows)
    epoch_steps = count_steps(
        loader.steps_per_epoch, num_epochs=train.num_epochs, max_train_step=train.max_train_step
    )
    evaluates = val_rows is not None
    val_loader = own_loader(val_rows, batch_size=train.val_batch_size) if evaluates else None
    schedule = build_schedule(train, epoch_steps)
    optimizer = build_optimizer(trainable_parameters(model), train)
    updater = build_updater(
        optimizer, config=train, precision=precision, device=world.device, engine=engine
    )
    if train.batching_strategy == "packing" and epoch_steps[0] < FEW_STEPS:
        _warn_of_few_steps(train, loader)
    described = {"model": model, "precision": precision, "world": world}
    with build_recorder(config, metrics, total_steps=schedule.total_steps, **described) as recorder:
        yield Training(
            batch_loss=batch_loss,
            updater=updater,
            schedule=schedule,
            config=train,
            loader=loader,
            sources=rows.sources,
            val_loader=val_loader,
            recorder=recorder,
            state=state,
            sampler=Sampler(batch_loss, tokenizer, prompts, stop=stop, **when) if prompts else None,
            save_best=save_best,
            stop=stop,
        )


def _batch_loss(
    model: nn.Module, rows: TokenRows, *, precision: Precision, world: World, engine: Engine
) -> BatchLoss:
    """The loss of a micro-batch, by the route that the probe finds for this model."""
    world.watch.phase("try the model on two rows")
    with autocast(precision, world.device):
        route = choose_route(model, rows, device=world.device, engine=engine)
    log.info(route.reason)
    return BatchLoss(model, route, precision, world, engine)


def _warn_of_few_steps(train: TrainConfig, loader: Loader) -> None:
    """Packing fills micro-batches up, so that a small data set makes very few steps."""
    plan = loader.world_plan(0)  # the whole epoch, wherever `max_train_step` ends it
    num_rows = sum(len(batch) for step in plan for batch in step)
    if num_rows >= FEW_STEPS > len(plan):
        room = train.batch_size_training * train.context_length
        log.warning(
            f"an epoch of {num_rows} rows is {len(plan)} steps, because a micro-batch takes "
            f"up to {room} positions. For more and smaller steps use --batching_strategy padding, "
            "or lower --batch_size_training or --context_length"
        )
