"""Which process this is, by the variables that torchrun sets. Without torch: commands ask too."""

import os
import re

from ftrecipes.config.errors import ConfigError
from ftrecipes.config.faults import Fault, shown


def read_ranks() -> tuple[int, int, int]:
    """(rank, number of processes, rank on this machine); (0, 1, 0) when nothing is set.

    Raises ConfigError when a variable is no number, or when they contradict each other.
    """
    rank = _read("RANK", 0, least=0)
    size = _read("WORLD_SIZE", 1, least=1)
    local_rank = _read("LOCAL_RANK", 0, least=0)
    if rank >= size:
        raise _wrong("RANK", str(rank), f"less than WORLD_SIZE, which is {size}")
    return rank, size, local_rank


def is_first() -> bool:
    """Whether this process speaks for all: rank 0, or one that does not know its rank."""
    try:
        return read_ranks()[0] == 0
    except ConfigError:
        return True


def _read(name: str, default: int, *, least: int) -> int:
    text = os.environ.get(name, str(default))
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
        raise _wrong(name, text, f"a whole number, {least} or more")
    return int(text)


def _wrong(name: str, text: str, expected: str) -> ConfigError:
    what = f"the environment variable {name} is wrong"
    do = "start with torchrun, or unset RANK, WORLD_SIZE and LOCAL_RANK"
    return ConfigError(Fault(what, got=shown(text), expected=expected, do=do).text)
