"""Put together what a run tells, as its settings ask."""

from functools import partial
from pathlib import Path

from torch import nn

from ftrecipes.config.precision import Precision
from ftrecipes.config.run_files import PROFILE, run_folder
from ftrecipes.config.schema import RunConfig
from ftrecipes.parallel.op_counts import OpCounts
from ftrecipes.parallel.recompute import op_counts
from ftrecipes.report.flop_counter import FlopCounter
from ftrecipes.report.flops import flop_formula
from ftrecipes.report.op_report import OpReport
from ftrecipes.report.peaks import device_peak
from ftrecipes.report.profiler import Profiler
from ftrecipes.report.recorder import Recorder, Watcher
from ftrecipes.report.trackers import open_trackers
from ftrecipes.runtime.collectives import gather_objects, sum_floats
from ftrecipes.runtime.world import World


def build_recorder(
    config: RunConfig,
    metrics: Path,
    *,
    model: nn.Module,
    precision: Precision,
    world: World,
    total_steps: int,
) -> Recorder:
    """The recorder of a run that writes `metrics` (metrics.jsonl), in its run folder or LIVE.

    Every rank builds one. Raises ConfigError when a tracker can not be started.
    """
    folder = run_folder(metrics.parent)
    peak = device_peak(world.device, precision.compute)
    return Recorder(
        metrics,
        rank=world.rank,
        device=world.device,
        total_steps=total_steps,
        trackers=open_trackers(config, folder, rank=world.rank),
        watchers=_watchers(config, folder, world, counts=op_counts(model)),
        formula=flop_formula(model),
        peak=None if peak is None else peak * world.size,
        gather=partial(gather_objects, world=world),
    )


def _watchers(
    config: RunConfig, folder: Path, world: World, *, counts: OpCounts | None
) -> list[Watcher]:
    train = config.train
    watchers: list[Watcher] = []
    if train.use_profiler and world.rank == 0:
        place = Path(train.profiler_dir).expanduser() if train.profiler_dir else folder / PROFILE
        steps = {"start": train.profiler_start, "steps": train.profiler_steps}
        watchers.append(Profiler(place, device=world.device, **steps))
    if train.flop_counter:
        total = partial(_sum, world)
        watchers.append(FlopCounter(train.flop_counter_start, total))
    if counts is not None:
        watchers.append(OpReport(counts))
    return watchers


def _sum(world: World, value: float) -> float:
    return sum_floats([value], world)[0]
