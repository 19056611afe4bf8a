"""Fill a model on meta from its files, each rank with its own share; nothing is read whole.

A weight is a row of elements in row-major order. A rank keeps the elements of its rows along the
first dimension of what is stored: of the weight, or of its packed bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ftrecipes.config.precision import Precision
from ftrecipes.config.schema import RunConfig
from ftrecipes.model.converted import weight_paths
from ftrecipes.model.donor import Donor, Task, build_donor
from ftrecipes.model.load import check_complete
from ftrecipes.model.parts import Parts
from ftrecipes.model.plain_names import parameter_places, plain_name
from ftrecipes.model.readers import Reader, opened
from ftrecipes.model.resolve import ModelSource
from ftrecipes.runtime import log
from ftrecipes.runtime.host_memory import give_back_freed
from ftrecipes.runtime.shares import Share


@dataclass(frozen=True)
class Filled:
    """What was done: weights of the model, those of them that had to be converted, and the bytes of
    files that this rank read."""

    num_weights: int
    num_converted: int
    bytes_read: int


def fill(
    model: nn.Module,
    source: ModelSource,
    config: RunConfig,
    precision: Precision,
    *,
    device: torch.device,
    put: Callable[[str, Tensor], None],
    share: Share,
    group: dist.ProcessGroup | None,
    beat: Callable[[], None],
) -> Filled:
    """Give every parameter and persistent buffer of the base model its part of the files' weights.

    `model` is that of `build_skeleton`, with or without adapters, recomputing and shards; adapters
    are left as they are. Weights are rounded, converted and quantized on `device` as `load_model`
    does it, bit for bit, for any number of ranks. `put(name, local)` sets the local part, on
    `device`, of the parameter of that name of the model, in all places where it is tied; `beat` is
    called after each weight. `group`: the ranks of the `share` (None: one). Called by all of them.

    Raises ModelError: files missing, cut short or damaged; weights that are missing, or of another
    shape; different weights where the config says that they are one.
    """
    donor = build_donor(source, getattr(torch, precision.base))
    paths = partial(weight_paths, source, precision)
    who = config.fsdp.load_from
    with opened(paths, who=who, share=share, group=group) as (reader, files):
        parts = Parts(model, donor, reader, device=device, put=put, share=share, group=group)
        tasks, unexpected = donor.tasks(parts.keys)
        _check_headers(source, donor, parts, tasks=tasks, unexpected=unexpected)
        for task in tasks:
            _take(task, donor, reader, parts=parts)
            give_back_freed()
            beat()
        _check_filled(source, donor, parts, model=model)
        num_converted = sum(task.converter is not None for task in tasks)
        return Filled(len(tasks), num_converted, files.bytes_read)


def _check_headers(
    source: ModelSource, donor: Donor, parts: Parts, *, tasks: list[Task], unexpected: set[str]
) -> None:
    """Raise ModelError for what the headers of the files show before a weight is read."""
    converted = [task for task in tasks if task.converter is not None]
    if converted:
        log.info(
            f"{source.name}: {len(converted)} weights (as {converted[0].target}) are not in the "
            "files as the model has them; each is read whole on every process, and converted, one "
            "at a time"
        )
    plain = {task.target: task.key for task in tasks if task.converter is None}
    missing = set() if converted else parts.missing(plain)
    mismatched = [
        (name, parts.shape_of(key), parts.expected_shape(name))
        for name, key in plain.items()
        if parts.shape_of(key) != parts.expected_shape(name)
    ]
    report = donor.report(missing=missing, unexpected=unexpected, mismatched=mismatched)
    check_complete(source, report)


def _take(task: Task, donor: Donor, reader: Reader, *, parts: Parts) -> None:
    """Fill what the task makes."""
    if task.converter is None:
        parts.fill(task.target, parts.shape_of(task.key), lambda: reader.source(task.key))
        return
    values: dict[str, Tensor] = {}

    def convert() -> dict[str, tuple[int, ...]]:
        values.update(donor.convert(task, reader.source, device=parts.device))
        return {name: tuple(value.shape) for name, value in values.items()}

    for name, shape in reader.told(convert).items():
        parts.fill(name, shape, lambda name=name: values[name])


def _check_filled(source: ModelSource, donor: Donor, parts: Parts, *, model: nn.Module) -> None:
    """Raise ModelError when something of the plain model was not filled."""
    check_complete(source, donor.report(missing=parts.missing(parts.filled)))
    known = donor.state.keys()
    empty = {
        name
        for name, place in parameter_places(model).items()
        if name in known and place.parameter.is_meta
    }
    # what transformers does not mind is missing: it would be random
    check_complete(source, donor.report() | {"missing_keys": empty})
    lost = [name for name, value in model.named_buffers() if value.is_meta]
    assert not lost, f"buffers without values: {[plain_name(model, name) for name in lost]}"
