"""The world of a check: the ranks of the group that tests/ranks.py has started."""

import torch
import torch.distributed as dist

from ftrecipes.runtime.world import World


def this_world() -> World:
    """This rank among all, on a machine of all; hosts have names by rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    return World(
        *(rank, size, rank),
        device=torch.device("cpu"),
        local_size=size,
        host=f"host{rank}",
        store=dist.distributed_c10d._get_default_store(),
    )
