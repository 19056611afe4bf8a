"""Where the processes of a run find each other: a store at MASTER_ADDR:MASTER_PORT.

torchrun's agent on the first machine keeps it; without torchrun, rank 0 does. Called by every rank.
"""

import json
import os
import time
from dataclasses import asdict, dataclass
from datetime import timedelta

import torch.distributed as dist

from ftrecipes.config.errors import ConfigError
from ftrecipes.config.faults import Fault, shown
from ftrecipes.runtime.addresses import interface_of, own_address, resolve
from ftrecipes.runtime.ranks import Ranks, is_loopback

# To resolve MASTER_ADDR, and to reach it: torchrun's store is there before any rank starts.
MASTER_SECONDS = 60
_POLL_SECONDS = 0.1
_SET_BY_TORCHRUN = "start with torchrun, which sets it, or set it on every rank"


@dataclass(frozen=True)
class Place:
    """Where a rank is. `address`: its own, on the way to MASTER_ADDR."""

    machine: str
    local_rank: int
    local_size: int
    address: str


def meet(ranks: Ranks, host: str, *, seconds: float) -> tuple[dist.Store, str]:
    """(store that all ranks share, name of this machine), once all ranks are there.

    The name is that of torchrun for the machine, else its host name. When the ranks are on several
    machines, gloo is told which interface they meet by, unless GLOO_SOCKET_IFNAME is set: it would
    take the address of the host's name, often a loopback one. Raises ConfigError when MASTER_ADDR
    or MASTER_PORT can not be used, when rank 0 can not open the port, when it is not reached within
    MASTER_SECONDS, when ranks are missing after `seconds`, and when ranks contradict each other.
    """
    if ranks.size == 1:
        return dist.HashStore(), host
    name, port = _master()
    address = resolve(name, seconds=MASTER_SECONDS)
    if address is None:
        what = f"MASTER_ADDR is a name that host {host} knows no address of"
        raise _fault(what, name, "the name or address of rank 0's machine", "give its IP address")
    if ranks.local_size < ranks.size:
        _check_loopback(name, address, ranks, host)
    # A run that torchrun starts again finds the keys of the one before it.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = dist.PrefixStore(f"ftrecipes/{attempt}", _connect(name, port, ranks, host))
    own = Place(
        *(os.environ.get("GROUP_RANK", host), ranks.local_rank, ranks.local_size),
        own_address(address) or "",
    )
    places = _gather(store, own, ranks, f"{name}:{port}", seconds=seconds)
    _check_places(places)
    _choose_interface(places, own, address)
    return store, own.machine


def _master() -> tuple[str, int]:
    name, port = (os.environ.get(variable, "") for variable in ("MASTER_ADDR", "MASTER_PORT"))
    if not name:
        expected = "the name or address of rank 0's machine, on every rank"
        raise _fault("MASTER_ADDR is missing", "", expected, _SET_BY_TORCHRUN)
    if not (port.isascii() and port.isdigit() and 0 < int(port[:9]) < 2**16):
        what = f"MASTER_PORT is {'wrong' if port else 'missing'}"
        expected = "a number from 1 to 65535, the same on every rank"
        raise _fault(what, port and shown(port), expected, _SET_BY_TORCHRUN)
    return name, int(port)


def _check_loopback(name: str, address: str, ranks: Ranks, host: str) -> None:
    """Refuse an address by which ranks on another machine would look for rank 0 on their own."""
    # On the first machine its own name may well be a loopback address, as on Debian.
    elsewhere = ranks.rank != ranks.local_rank
    if is_loopback(name) or (elsewhere and is_loopback(address)):
        raise _fault(
            "MASTER_ADDR leads every machine to itself, and the processes are on several",
            f"{name}, which is {address} on host {host} (rank {ranks.rank})",
            "an address of rank 0's machine that the others can reach",
            "give its IP address: with torchrun, `--rdzv_endpoint IP:PORT` on every machine and"
            " `--local_addr IP`, each its own; without, MASTER_ADDR=IP",
        )


def _connect(name: str, port: int, ranks: Ranks, host: str) -> dist.Store:
    """The store; kept by this process when it is rank 0 and torchrun does not keep it."""
    keeps = ranks.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        return dist.TCPStore(
            *(name, port, ranks.size),
            is_master=keeps,
            # torch 2.13 tries twice, and pauses in between for up to as long.
            timeout=timedelta(seconds=MASTER_SECONDS / 3),
            wait_for_workers=False,
        )
    except (RuntimeError, OSError) as error:
        reason = _first_line(error)
        if keeps and "EADDRINUSE" in str(error):
            what = f"the port {port} is in use on host {host}, by another run or another program"
            do = "take a free port: MASTER_PORT=N, the same on every rank; 29400 to 29999 are usual"
            raise _fault(what, reason, do=do) from error
        if keeps:
            what = f"rank 0 can not open {name}:{port} on host {host}"
            do = "give an address and a port that this machine may open to MASTER_ADDR, MASTER_PORT"
            raise _fault(what, reason, do=do) from error
        raise _fault(
            f"rank {ranks.rank} on host {host} did not reach rank 0's machine at {name}:{port}"
            f" within {MASTER_SECONDS} seconds",
            reason,
            "rank 0 running there, and a network that lets this port through",
            "see that rank 0 was started and what it says, that the address is that of its"
            " machine, and that no firewall is between",
        ) from error


def _gather(
    store: dist.Store, own: Place, ranks: Ranks, where: str, *, seconds: float
) -> list[Place]:
    """The places of all ranks, when the last one is there."""
    keys = [f"place/{rank}" for rank in range(ranks.size)]
    try:
        if store.add(f"came/{ranks.rank}", 1) > 1:
            what = f"two processes say that they are rank {ranks.rank}; one is on {own.machine}"
            raise _fault(what, "", "each RANK once", "start with torchrun, which numbers them")
        store.set(keys[ranks.rank], json.dumps(asdict(own)))
        deadline = time.monotonic() + seconds
        while not store.check(keys):
            if time.monotonic() > deadline:
                missing = [rank for rank in range(ranks.size) if not store.check([keys[rank]])]
                names = ", ".join(map(str, missing))
                raise _fault(
                    f"not all processes came to {where} within {seconds:g} seconds",
                    f"nothing from rank {names} of {ranks.size}",
                    do="see what those processes say, and that every machine started its own",
                )
            time.sleep(_POLL_SECONDS)
        return [Place(**json.loads(store.get(key))) for key in keys]
    except RuntimeError as error:
        what = f"rank {ranks.rank} lost the connection to {where} while the processes met"
        do = "see what rank 0 says, or torchrun on its machine"
        raise _fault(what, _first_line(error), do=do) from error


def _check_places(places: list[Place]) -> None:
    """Refuse ranks that can not be on the machines that they say they are on."""
    machines: dict[str, list[tuple[int, Place]]] = {}
    for rank, place in enumerate(places):
        machines.setdefault(place.machine, []).append((rank, place))
    for machine, members in machines.items():
        local_ranks = sorted(place.local_rank for _, place in members)
        sizes = {place.local_size for _, place in members}
        if sizes == {len(members)} and local_ranks == list(range(len(members))):
            continue
        told = ", ".join(
            f"rank {rank} is {place.local_rank} of {place.local_size}" for rank, place in members
        )
        raise _fault(
            f"the processes of machine {machine} contradict each other",
            told,
            "LOCAL_RANK from 0 to LOCAL_WORLD_SIZE - 1 on each machine",
            "start with torchrun; by hand, set LOCAL_RANK and LOCAL_WORLD_SIZE, and GROUP_RANK (a"
            " number for each machine) where machines have the same host name",
        )


def _choose_interface(places: list[Place], own: Place, master: str) -> None:
    """Tell gloo by which interface this machine reaches the others."""
    others = [place.address for place in places if place.machine != own.machine and place.address]
    if not others or "GLOO_SOCKET_IFNAME" in os.environ:
        return
    # Rank 0's machine reaches MASTER_ADDR by itself, so that it asks for the way to the others.
    target = others[0] if is_loopback(master) or own.address == master else master
    address = own_address(target)
    interface = interface_of(address) if address and not is_loopback(address) else None
    if interface:
        os.environ["GLOO_SOCKET_IFNAME"] = interface


def _first_line(error: Exception) -> str:
    # What torch 2.13 says after that names addresses that nobody asked for.
    return str(error).strip().partition("\n")[0].partition(". The client")[0]


def _fault(what: str, got: str, expected: str = "", do: str = "") -> ConfigError:
    return ConfigError(Fault(what, got=got, expected=expected, do=do).text)
