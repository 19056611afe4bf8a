"""Who this process is among the others, and where it computes."""

from dataclasses import dataclass

import torch

from ftrecipes.config.errors import ConfigError
from ftrecipes.runtime.ranks import read_ranks


@dataclass(frozen=True)
class World:
    """Place of this process: `rank` of `size`, `local_rank` on its machine, and its device."""

    rank: int
    size: int
    local_rank: int
    device: torch.device


def start_world(device: str) -> World:
    """Read torchrun's variables and pick the device; one process is a world of size 1.

    `device` is `auto` or a device type. Raises ConfigError when that type is not on this machine,
    when the variables are wrong, or when several processes were started: training on them comes
    with --enable_fsdp.
    """
    rank, size, local_rank = read_ranks()
    if size > 1:
        raise ConfigError(
            f"{size} processes were started; each would train alone and write the same folder.\n"
            "  expected: one process; training on several (--enable_fsdp) is not yet supported\n"
            "  do: start with `--nproc_per_node 1`, or without torchrun"
        )
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    kind = device if device != "auto" else (found.type if found else "cpu")
    if kind != "cpu" and (found is None or found.type != kind):
        raise ConfigError(
            f"--device {kind}: this machine has no such device.\n"
            f"  got: {found.type if found else 'cpu only'}\n"
            "  do: leave --device out, or install a torch build for it"
        )
    place = torch.device(kind) if kind in ("cpu", "mps") else torch.device(kind, local_rank)
    return World(rank=rank, size=size, local_rank=local_rank, device=place)
