"""A run of collectives that a test may end badly: `death_job.py HOW VICTIM [SECONDS] FOLDER`.

Each rank leaves `FOLDER/ready<rank>` when it is in the middle. `HOW` is what the rank VICTIM does
then: `wait` (it goes on, as all do), `fail`, `stop` (SIGSTOP), or `all` (every rank raises the same
error). `SECONDS` is how long the watch waits for progress; with it all its patience is short.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from ftrecipes.commands.exits import end
from ftrecipes.config.errors import DataError
from ftrecipes.runtime.judge import Patience
from ftrecipes.runtime.ranks import read_ranks
from ftrecipes.runtime.watch import Watch, open_watch, told_by
from ftrecipes.runtime.world import open_world

SHORT = Patience(look=0.3, silent=5.0, store=4.0, second_look=2.0, grace=2.0)


@contextmanager
def short_world(seconds: float) -> Iterator[Watch]:
    """Like open_world, with a watch that is short of patience."""
    dist.init_process_group("gloo")
    ranks = read_ranks()
    host = os.uname().nodename
    store = _get_default_store()
    with open_watch(
        store, **ranks._asdict(), host=host, timeout_seconds=seconds, patience=SHORT
    ) as watch:
        yield watch


def run(folder: Path, how: str, victim: int, seconds: float | None) -> None:
    """Reduce for ever, but for what the victim does."""
    rank = read_ranks().rank
    mine = how if rank == victim or how == "all" else ""
    torch.set_num_threads(1)
    if seconds is None:
        with open_world("cpu", enable_fsdp=True, timeout_seconds=600) as world:
            reduce_for_ever(world.watch, folder, mine, rank=rank, look=Patience().look)
    else:
        with short_world(seconds) as watch:
            reduce_for_ever(watch, folder, mine, rank=rank, look=SHORT.look)


def reduce_for_ever(watch: Watch, folder: Path, how: str, *, rank: int, look: float) -> None:
    """The body of a run, as finetuning wraps it; in the middle once the others know the phase."""
    began = time.monotonic()
    watch.at_end(lambda reason: (folder / f"end{rank}").write_text(reason))
    with told_by(watch):
        while True:
            watch.phase("step 5")
            # Agreed on: all ranks are in the middle in the same round.
            is_ready = torch.tensor(float(time.monotonic() - began > 3 * look))
            dist.all_reduce(is_ready, dist.ReduceOp.MIN)
            if is_ready:
                (folder / f"ready{rank}").write_text(str(os.getpid()))
                misbehave(how)
            time.sleep(0.01)


def misbehave(how: str) -> None:
    """What the victim does in the middle."""
    if how in ("fail", "all"):
        raise DataError("row 7 is broken\n  do: mend it")
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    how, victim, *seconds, folder = sys.argv[1:]
    end(lambda: run(Path(folder), how, int(victim), float(seconds[0]) if seconds else None))
