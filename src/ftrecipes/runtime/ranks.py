"""Which process this is, by the variables that torchrun sets. Without torch: commands ask too."""

import os
import re
from ipaddress import ip_address
from typing import NamedTuple

from ftrecipes.config.errors import ConfigError
from ftrecipes.config.faults import Fault, shown


class Ranks(NamedTuple):
    """`rank` of `size` processes; `local_rank` of `local_size` on this machine."""

    rank: int
    size: int
    local_rank: int
    local_size: int


def read_ranks() -> Ranks:
    """What torchrun, or a person by hand, has set; one process of one when nothing is.

    By hand LOCAL_RANK and LOCAL_WORLD_SIZE may be left out: then all processes are on one machine
    when MASTER_ADDR is a loopback address, and else each has a machine of its own. Raises
    ConfigError when a variable is missing or no number, or when they contradict each other.
    """
    size = _read("WORLD_SIZE", 1, least=1)
    if size > 1 and "RANK" not in os.environ:
        raise _wrong("RANK", "", f"a number below WORLD_SIZE, which is {size}")
    rank = _read("RANK", 0, least=0)
    if rank >= size:
        raise _wrong("RANK", str(rank), f"less than WORLD_SIZE, which is {size}")
    if size == 1:
        return Ranks(rank, size, _read("LOCAL_RANK", 0, least=0), 1)
    return Ranks(rank, size, *_read_local(rank, size))


def _read_local(rank: int, size: int) -> tuple[int, int]:
    """(rank on this machine, processes on it)."""
    missing = [name for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE") if name not in os.environ]
    if len(missing) == 2:
        together = is_loopback(os.environ.get("MASTER_ADDR", "localhost"))
        return (rank, size) if together else (0, 1)
    if missing:
        raise _wrong(missing[0], "", "LOCAL_RANK and LOCAL_WORLD_SIZE both set, or neither")
    local_rank = _read("LOCAL_RANK", 0, least=0)
    local_size = _read("LOCAL_WORLD_SIZE", 1, least=1)
    if local_size > size:
        raise _wrong("LOCAL_WORLD_SIZE", str(local_size), f"at most WORLD_SIZE, which is {size}")
    if local_rank >= local_size:
        expected = f"less than LOCAL_WORLD_SIZE, which is {local_size}"
        raise _wrong("LOCAL_RANK", str(local_rank), expected)
    return local_rank, local_size


def is_first() -> bool:
    """Whether this process speaks for all: rank 0, or one that does not know its rank."""
    try:
        return read_ranks().rank == 0
    except ConfigError:
        return True


def is_loopback(address: str) -> bool:
    """Whether `address`, as it is written, means the machine that uses it, whichever that is."""
    if address == "localhost":
        return True
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False  # a name


def _read(name: str, default: int, *, least: int) -> int:
    text = os.environ.get(name, str(default))
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < least:
        raise _wrong(name, text, f"a whole number, {least} or more")
    return int(text)


def _wrong(name: str, text: str, expected: str) -> ConfigError:
    missing = name not in os.environ
    what = f"the environment variable {name} is {'missing' if missing else 'wrong'}"
    do = "start with torchrun, or unset RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE"
    got = "" if missing else shown(text)
    return ConfigError(Fault(what, got=got, expected=expected, do=do).text)
