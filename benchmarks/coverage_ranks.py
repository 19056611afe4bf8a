"""One model type for benchmarks/coverage.py once more: on two ranks, each with its share of it.

The ranks are forked, one pair a type: whatever one does, or waits for, ends with its pair. They run
the recipe with --enable_fsdp on the CPU: a skeleton on meta, units, shares read from the files,
blocks computed again in the backward.
"""

import multiprocessing
import os
import socket
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from benchmarks.coverage_run import TOLERANCE, Attempt, train
from ftrecipes.config.errors import PeerError, RecipeError

SIZE = 2
LIMIT_SECONDS = 120
LOG = "rank{}.log"


class End(NamedTuple):
    """How a rank ended. `kind`: trained, refused, failed, or told (by the other one)."""

    kind: str
    losses: Sequence[float] = ()
    why: str = ""


def try_ranks(
    model_type: str, folder: Path, expected: Sequence[float], *, quantization: str = "none"
) -> Attempt:
    """Train what `try_type` has left in `folder`, on SIZE ranks; `expected` are its losses.

    What the ranks say goes to rank<N>.log in `folder`.
    """
    context = multiprocessing.get_context("fork")
    port, began = _free_port(), time.perf_counter()
    pipes = [context.Pipe(duplex=False) for _ in range(SIZE)]
    processes = [
        context.Process(target=_rank, args=(rank, port, folder, quantization, sender))
        for rank, (_, sender) in enumerate(pipes)
    ]
    for process, (_, sender) in zip(processes, pipes, strict=True):
        process.start()
        sender.close()
    ends = [_receive(receiver, began + LIMIT_SECONDS) for receiver, _ in pipes]
    for process in processes:
        process.kill()
        process.join()
    return judge(model_type, ends, expected, seconds=time.perf_counter() - began)


def judge(
    model_type: str, ends: Sequence[End], expected: Sequence[float], *, seconds: float
) -> Attempt:
    """What the ends of all ranks mean together."""
    order = ("failed", "refused", "told", "trained")
    worst = min(ends, key=lambda end: order.index(end.kind))
    if worst.kind != "trained":
        outcome = "refused" if worst.kind == "refused" else "crashed"
        return Attempt(model_type, outcome, why=worst.why)
    differences = [
        abs(a - b) / b for end in ends for a, b in zip(end.losses, expected, strict=True)
    ]
    outcome = "equal" if max(differences) < TOLERANCE else "differs"
    return Attempt(model_type, outcome, difference=max(differences), seconds=seconds)


def _receive(receiver: Connection, deadline: float) -> End:
    try:
        if receiver.poll(max(0.0, deadline - time.perf_counter())):
            return receiver.recv()
    except EOFError:
        return End("failed", why="a rank died")
    return End("failed", why=f"no end within {LIMIT_SECONDS} s")


def _rank(rank: int, port: int, folder: Path, quantization: str, sender: Connection) -> None:
    """In a process of its own: the recipe, and how it ended."""
    with open(folder / LOG.format(rank), "w", encoding="utf-8") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        os.environ |= {
            **dict.fromkeys(["RANK", "LOCAL_RANK"], str(rank)),
            **dict.fromkeys(["WORLD_SIZE", "LOCAL_WORLD_SIZE"], str(SIZE)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        sender.send(_train(folder, quantization))


def _train(folder: Path, quantization: str) -> End:
    try:
        losses, _ = train(folder, quantization, ranks=SIZE)
    except PeerError as error:
        return End("told", why=_words(error))
    except RecipeError as error:
        return End("refused", why=_words(error))
    except Exception as error:  # noqa: BLE001  reported in the table
        return End("failed", why=f"{type(error).__name__}: {_words(error)}")
    return End("trained", losses)


def _words(error: Exception) -> str:
    return " ".join(" ".join(str(error).splitlines()[:2]).split())[:200]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
