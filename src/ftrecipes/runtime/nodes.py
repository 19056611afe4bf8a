"""What the machines of a run must share, and what each of them does once.

Every function is called by all ranks, in the same order. With one process nothing is asked.
"""

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ftrecipes.config.errors import ConfigError, PeerError
from ftrecipes.config.faults import Fault, shown
from ftrecipes.runtime.collectives import first_says, gather_objects
from ftrecipes.runtime.watch import Watch
from ftrecipes.runtime.world import World

_POLL_SECONDS = 0.1
_SHORT_POLL_SECONDS = 0.02  # of what is mostly short
_BEAT_SECONDS = 1
# A network folder may show a new file late: NFS keeps what it knows of a folder for up to a minute.
_FOLDER_SECONDS = 60
_SHOWN_DIFFERENCES = 10


@contextmanager
def first_on_machine(world: World) -> Iterator[None]:
    """The body runs on local rank 0 of each machine, and when that is through, on its others.

    For what the first one leaves on the machine's disk and the others find there: downloads, cached
    rows. No collectives in the body. All ranks leave together, so that no rank waits in a
    collective while another machine is still busy; they beat meanwhile, however long it takes.
    Raises PeerError on all ranks when the body failed on another one.
    """
    if world.size == 1:
        yield
        return
    store = world.store
    # A rank counts its own calls in the store: the same number on all, as all call in one order.
    name = f"first/{store.add(f'first/calls/{world.rank}', 1)}"
    machine = f"{name}/{world.machine}"
    with beating(world.watch):
        try:
            if world.local_rank > 0:
                _wait_for(machine, f"{name}/failed", world)
            yield
        except PeerError:
            raise
        except BaseException as error:
            said = {"rank": world.rank, "host": world.host, "error": str(error) or repr(error)}
            store.set(f"{name}/failed", json.dumps(said))
            raise
        if world.local_rank == 0:
            store.set(machine, "")
        if store.add(f"{name}/through", 1) == world.size:
            store.set(f"{name}/all", "")
        _wait_for(f"{name}/all", f"{name}/failed", world)


def _wait_for(key: str, failed: str, world: World) -> None:
    """Until `key` is in the store. Polled: a wait inside the store would hold signals off."""
    while not world.store.check([key]):
        if world.store.check([failed]):
            said = json.loads(world.store.get(failed))
            raise PeerError(f"rank {said['rank']} on host {said['host']} failed: {said['error']}")
        time.sleep(_POLL_SECONDS)


@contextmanager
def beating(watch: Watch) -> Iterator[None]:
    """Beat while the body runs, which may be long and calls nothing that beats.

    Each rank for itself. A rank that hangs inside is not found; one that dies is.
    """
    over = threading.Event()

    def beat() -> None:
        while not over.wait(_BEAT_SECONDS):
            watch.beat()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def wait_for_all(world: World) -> None:
    """Come back when every rank is here, however long some of them take.

    For what comes after work of unknown length on one rank: a collective has a limit. All ranks
    call it.
    """
    if world.size == 1:
        return
    store = world.store
    name = f"all/{store.add(f'all/calls/{world.rank}', 1)}"
    if store.add(f"{name}/here", 1) == world.size:
        store.set(name, "")
    with beating(world.watch):
        while not store.check([name]):
            world.watch.listen()
            time.sleep(_SHORT_POLL_SECONDS)


def check_same(world: World, **values: object) -> None:
    """Refuse to go on unless `values` are the same on every rank.

    They are what JSON can hold; inside mappings each entry is compared. `settings` is one of names
    of flags. Raises ConfigError on all ranks, with what differs and on which ranks and hosts.
    """
    mine = {
        name: json.dumps(value, sort_keys=True, default=str)
        for name, value in _entries(values, title=lambda key: key.replace("_", " "))
    }
    everyone = gather_objects((world.host, mine), world)
    hosts = [host for host, _ in everyone]
    names = list(dict.fromkeys(name for _, found in everyone for name in found))
    lines = []
    for name in names:
        ranks_of: dict[str, list[int]] = {}
        for rank, (_, found) in enumerate(everyone):
            ranks_of.setdefault(found.get(name, "nothing"), []).append(rank)
        if len(ranks_of) > 1:
            told = (f"{shown(text)} on {_who(ranks, hosts)}" for text, ranks in ranks_of.items())
            lines.append(f"{name}: {'; '.join(told)}")
    if len(lines) > _SHOWN_DIFFERENCES:
        lines[_SHOWN_DIFFERENCES:] = [f"and {len(lines) - _SHOWN_DIFFERENCES} more"]
    if lines:
        fault = Fault(
            "The processes do not agree on what to do.",
            got="\n    ".join(lines),
            expected="the same settings, packages, model and data on every machine",
            do="start every machine with the same command, install and copy the same there, and let"
            " a custom data set make the same rows in every process",
        )
        raise ConfigError(fault.text)


def _entries(values: Mapping, title: Callable[[str], str]) -> Iterator[tuple[str, object]]:
    """(name to show, value), mappings taken apart."""
    for key, value in values.items():
        name = title(str(key))
        if not isinstance(value, Mapping):
            yield name, value
            continue
        if name == "settings":
            yield from _entries(value, title="--{}".format)
        else:
            mark = "." if name.startswith("--") else " "
            yield from _entries(value, title=f"{name}{mark}{{}}".format)


def _who(ranks: list[int], hosts: list[str]) -> str:
    """`rank 0 (a)`, or `ranks 0, 1, 2 (a, b)`: in order, each host once."""
    names = ", ".join(dict.fromkeys(hosts[rank] for rank in ranks))
    plural = "s" if len(ranks) > 1 else ""
    return f"rank{plural} {', '.join(map(str, ranks))} ({names})"


def check_shared_folder(world: World, folder: Path, *, seconds: float = _FOLDER_SECONDS) -> None:
    """Refuse to go on unless every machine sees `folder` as rank 0 does.

    Rank 0 leaves a file there for a moment; the first rank of each machine looks for it for up to
    `seconds`. The folder exists on rank 0. Raises ConfigError on all ranks, with the hosts that do
    not see it.
    """
    if world.local_size == world.size:  # one machine
        return
    token = first_says(uuid.uuid4().hex, world)
    file = folder / f".shared-{token}"
    try:
        wrong = first_says(_leave(file, token, world) if world.rank == 0 else "", world)
        looks = world.local_rank == 0 and not wrong
        with beating(world.watch):
            sees = not looks or _finds(file, token, seconds=seconds)
            found = gather_objects((world.host, sees), world)
    finally:
        if world.rank == 0:
            file.unlink(missing_ok=True)
    hosts = [host for host, _ in found]
    blind = [rank for rank, (_, sees) in enumerate(found) if not sees]
    if wrong or blind:
        fault = Fault(
            f"--output_dir {folder}: not one folder that all machines of the run share",
            got=wrong
            or f"a file that rank 0 ({hosts[0]}) wrote there is not seen by {_who(blind, hosts)}",
            expected="a network folder, at the same path on every machine",
            do="choose a folder of a file system that every machine mounts",
        )
        raise ConfigError(fault.text)


def _leave(file: Path, token: str, world: World) -> str:
    """Write the file; what went wrong, empty when nothing did."""
    try:
        file.write_text(token, encoding="ascii")
    except OSError as error:
        return f"{error.strerror} on {_who([0], [world.host])}"
    return ""


def _finds(file: Path, token: str, *, seconds: float) -> bool:
    """Whether the file with these words turns up within `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(OSError):
            if file.read_text(encoding="ascii") == token:
                return True
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
