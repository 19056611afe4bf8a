"""Who this process is among the others, and where it computes."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

from ftrecipes.config.errors import ConfigError
from ftrecipes.runtime.host_memory import free_at_once
from ftrecipes.runtime.ranks import Ranks, read_ranks
from ftrecipes.runtime.rendezvous import meet
from ftrecipes.runtime.watch import NoWatch, Watch, open_watch

# Of a collective, beyond the time after which the watch ends a run: the watch knows the reason.
AFTER_THE_WATCH_SECONDS = 60
# What carries tensors of each kind of device; those of the host always go by gloo.
BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl", "xpu": "cpu:gloo,xpu:xccl"}


@dataclass(frozen=True)
class World:
    """Place of this process: `rank` of `size`, `local_rank` of `local_size` on its machine, and its
    device. `machine` is a name that the processes of one machine share and no others have; `host`
    is for people. `store` is what the ranks met at; None for a process that is alone."""

    rank: int
    size: int
    local_rank: int
    device: torch.device
    local_size: int = 1
    machine: str = ""
    host: str = field(default_factory=socket.gethostname)
    store: dist.Store | None = field(default=None, compare=False, repr=False)
    watch: Watch = field(default_factory=NoWatch, compare=False, repr=False)


def start_world(device: str) -> World:
    """The world of a process that is alone: its device, `auto` or a device type.

    Raises ConfigError when that type is not on this machine, when torchrun's variables are wrong,
    or when they say that several processes were started: those need --enable_fsdp.
    """
    ranks = read_ranks()
    if ranks.size > 1:
        raise ConfigError(
            f"{ranks.size} processes were started; each would do the same and write the same"
            " folder.\n"
            "  expected: one process, or training with --enable_fsdp\n"
            "  do: add --enable_fsdp to train on all of them; else start with `--nproc_per_node 1`,"
            " or without torchrun"
        )
    return World(*ranks[:3], device=choose_device(device, ranks.local_rank))


@contextmanager
def open_world(device: str, *, enable_fsdp: bool, timeout_seconds: float) -> Iterator[World]:
    """The world while the body runs; with `enable_fsdp` a process group joins all processes.

    Called by every rank. One process needs no variables of torchrun. `timeout_seconds`: without
    progress of a rank for so long the watch ends the run. Raises ConfigError as `start_world` does,
    when the ranks can not meet, and when this torch or machine lacks what --enable_fsdp needs.
    """
    if not enable_fsdp:
        yield start_world(device)
        return
    ranks = read_ranks()
    place = choose_device(device, ranks.local_rank)
    _check_devices(place, ranks)
    if place.type == "cpu" and ranks.size > 1:
        free_at_once()
    host = socket.gethostname()
    store, machine = meet(ranks, host, seconds=timeout_seconds)
    watched = open_watch(store, **ranks._asdict(), host=host, timeout_seconds=timeout_seconds)
    limit = timeout_seconds + AFTER_THE_WATCH_SECONDS
    with ExitStack() as group, watched as watch:
        watch.phase("connect to the other processes")
        group.enter_context(_process_group(store, ranks, place, seconds=limit))
        who = {"device": place, "machine": machine, "host": host}
        yield World(**ranks._asdict(), **who, store=store, watch=watch)


def choose_device(device: str, local_rank: int) -> torch.device:
    """The device that `device` means for this process: of several, that of its local rank.

    `auto` is the accelerator that torch finds, else the CPU. Raises ConfigError when there is none
    of that type.
    """
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    kind = device if device != "auto" else (found.type if found else "cpu")
    if kind != "cpu" and (found is None or found.type != kind):
        raise ConfigError(
            f"--device {kind}: this machine has no such device.\n"
            f"  got: {found.type if found else 'cpu only'}\n"
            "  do: leave --device out, or install a torch build for it"
        )
    return torch.device(kind) if kind in ("cpu", "mps") else torch.device(kind, local_rank)


def _check_devices(place: torch.device, ranks: Ranks) -> None:
    """Refuse devices that can not be joined, or that are too few for the processes here."""
    built = {
        "cpu": dist.is_gloo_available,
        "cuda": lambda: dist.is_gloo_available() and dist.is_nccl_available(),
        "xpu": lambda: dist.is_gloo_available() and dist.is_xccl_available(),
    }
    if place.type not in built:
        raise ConfigError(
            f"--enable_fsdp: torch can not join processes on {place.type}.\n"
            f"  expected: {', '.join(built)}\n"
            "  do: leave --enable_fsdp out to train with one process, or add --device cpu"
        )
    if not built[place.type]():
        raise ConfigError(
            f"--enable_fsdp: this torch is built without {BACKENDS[place.type]}.\n"
            f"  got: torch {torch.__version__}\n"
            "  do: install a torch build that has it, or leave --enable_fsdp out"
        )
    count = ranks.local_size if place.type == "cpu" else torch.accelerator.device_count()
    if count < max(ranks.local_size, ranks.local_rank + 1):
        raise ConfigError(
            f"{ranks.local_size} processes were started on host {socket.gethostname()}, which has"
            f" fewer {place.type} devices.\n"
            f"  got: {count}\n"
            "  expected: a device for each process, and every process sees all of them\n"
            f"  do: start with `--nproc_per_node {count}`, or look at what hides devices"
            " (CUDA_VISIBLE_DEVICES, ZE_AFFINITY_MASK, the job's request)"
        )


@contextmanager
def _process_group(
    store: dist.Store, ranks: Ranks, place: torch.device, *, seconds: float
) -> Iterator[None]:
    """The default process group while the body runs."""
    if place.type != "cpu":
        torch.accelerator.set_device_index(place)
    limit = timedelta(seconds=seconds)
    store.set_timeout(limit)
    try:
        dist.init_process_group(
            BACKENDS[place.type],
            store=dist.PrefixStore("group", store),
            rank=ranks.rank,
            world_size=ranks.size,
            timeout=limit,
        )
    except RuntimeError as error:
        raise ConfigError(
            f"rank {ranks.rank} on host {socket.gethostname()} can not connect to the other"
            " processes, although they met.\n"
            f"  got: {str(error).strip().partition(chr(10))[0]}\n"
            "  expected: machines of a run reach each other on all ports\n"
            "  do: name the network interface that they share: GLOO_SOCKET_IFNAME=eth0 (and"
            " NCCL_SOCKET_IFNAME for CUDA)"
        ) from error
    try:
        yield
    except BaseException:
        # What an accelerator still waits for may never come, and would hold us; gloo lets go.
        if place.type == "cpu" or ranks.size == 1:
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()
