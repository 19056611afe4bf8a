"""Trackers: whether their packages are there, and settings that need one of them."""

from collections.abc import Iterator
from importlib.util import find_spec

from ftrecipes.config.faults import Fault, idle
from ftrecipes.config.flags import asked_in, value_of
from ftrecipes.config.schema import RunConfig

TRACKERS = ("wandb", "tensorboard")


def check_tracking(config: RunConfig) -> Iterator[Fault]:
    """Faults of the section `tracking`."""
    for name in TRACKERS:
        flag = f"tracking.{name}"
        if value_of(config, flag) and not _is_installed(name):
            what = f"--{flag}: the package {name} is not installed here"
            yield Fault(what, do=f"pip install {name}, or leave --{flag} out", flags=(flag,))
    switches = [f"tracking.{name}" for name in TRACKERS]
    names = [name for name in asked_in(config, "tracking") if name not in switches]
    if names and not config.tracking.wandb:
        yield idle(names, "it needs --tracking.wandb", "tracking.wandb")


def _is_installed(package: str) -> bool:
    # A folder of that name on the path, such as wandb's own, is found too, but has no origin.
    spec = find_spec(package)
    return spec is not None and spec.origin is not None
