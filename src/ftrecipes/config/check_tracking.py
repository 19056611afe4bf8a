"""Trackers, trace and FLOP counter: packages that must be there, and what would do nothing."""

from collections.abc import Iterator
from importlib.util import find_spec

from ftrecipes.config.faults import Fault, idle
from ftrecipes.config.flags import asked_in, value_of
from ftrecipes.config.schema import RunConfig, TrainConfig
from ftrecipes.config.sections import TrackingConfig
from ftrecipes.config.source import TRACKERS


def check_tracking(config: RunConfig) -> Iterator[Fault]:
    """Faults of the section `tracking`, and of a trace that would show the counter's work."""
    yield from _overlap(config.train)
    for name in TRACKERS:
        flag = f"tracking.{name}"
        if value_of(config, flag) and not _is_installed(name):
            what = f"--{flag}: the package {name} is not installed here"
            yield Fault(what, do=f"pip install {name}, or leave --{flag} out", flags=(flag,))
    switches = [f"tracking.{name}" for name in TRACKERS]
    yield from _refused_by_wandb(config.tracking)
    names = [name for name in asked_in(config, "tracking") if name not in switches]
    if names and not config.tracking.wandb:
        yield idle(names, "it needs --tracking.wandb", "tracking.wandb")


def _refused_by_wandb(tracking: TrackingConfig) -> Iterator[Fault]:
    """What wandb 0.31 refuses when a run starts, which is after the weights have been read."""
    project = tracking.project
    if len(project) > 128 or set(project) & set("/\\#?%:"):
        yield Fault(
            "--tracking.project: no name for a project of wandb",
            got=project,
            expected="at most 128 characters, none of them / \\ # ? % :",
            flags=("tracking.project",),
        )
    for tag in tracking.tags:
        if len(tag) > 64:
            yield Fault(
                "--tracking.tags: too long a tag",
                got=f"{tag} ({len(tag)} characters)",
                expected="at most 64",
                flags=("tracking.tags",),
            )


def _overlap(train: TrainConfig) -> Iterator[Fault]:
    """While torch counts, every operator runs through the counter and is in the trace twice."""
    start, end = train.profiler_start, train.profiler_start + train.profiler_steps
    if train.use_profiler and train.flop_counter and start <= train.flop_counter_start < end:
        yield Fault(
            f"--flop_counter_start {train.flop_counter_start}: this step is in the trace of "
            "--use_profiler, which would show the counter at work",
            got=f"a trace of the steps {start} to {end - 1}",
            do=f"--flop_counter_start {end}",
            flags=("flop_counter_start", "flop_counter", "use_profiler", "profiler_start"),
        )


def _is_installed(package: str) -> bool:
    # A folder of that name on the path, such as wandb's own, is found too, but has no origin.
    spec = find_spec(package)
    return spec is not None and spec.origin is not None
