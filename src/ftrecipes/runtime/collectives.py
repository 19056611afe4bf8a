"""What ranks tell each other: small values by way of the host, and parts of tensors.

Every function is called by all ranks of the world (of the group), in the same order, or by none.
With one process nothing is sent, and no process group is needed.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from ftrecipes.runtime.world import World


def sum_floats(values: Sequence[float], world: World) -> list[float]:
    """Sums over all ranks, value by value, added as float64. Same number of values on each rank."""
    if world.size == 1:
        return [float(value) for value in values]
    sums = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(sums)
    return sums.tolist()


def gather_objects(value: object, world: World) -> list:
    """What each rank gave, in the order of ranks, on all ranks; anything that can be pickled."""
    if world.size == 1:
        return [value]
    found: list = [None] * world.size
    dist.all_gather_object(found, value)
    return found


def first_says(value: object, world: World) -> object:
    """The value of rank 0, on all ranks; what the others gave is not looked at."""
    if world.size == 1:
        return value
    told = [value if world.rank == 0 else None]
    dist.broadcast_object_list(told, src=0)
    return told[0]


def barrier(world: World) -> None:
    """Come back when every rank is here. Goes by the host: a device's queue is not waited for."""
    sum_floats([0.0], world)


def concatenate_parts(
    part: torch.Tensor, lengths: Sequence[int], group: dist.ProcessGroup | None
) -> torch.Tensor:
    """The parts of all ranks of `group`, one behind another: a 1-D tensor of sum(lengths).

    `part` is 1-D, of any dtype, on the device of the group; `lengths` are those of all parts, known
    to every rank, zeros among them. Called by all ranks of the group; `group` is None for one part.
    """
    if len(part) != lengths[dist.get_rank(group) if len(lengths) > 1 else 0]:
        raise ValueError(f"a part of {len(part)} elements among parts of {list(lengths)}")
    if len(lengths) == 1:
        return part
    padded = part.new_zeros(max(lengths))
    padded[: len(part)] = part
    parts = [torch.empty_like(padded) for _ in lengths]
    # As bytes: not every backend knows every dtype.
    dist.all_gather([part.view(torch.uint8) for part in parts], padded.view(torch.uint8), group)
    return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])
