"""Steps that one rank takes for all, or each for itself, and all know how they went.

Without that the ranks part: one has an error, and the others wait for it in the next collective.
"""

from collections.abc import Callable
from typing import TypeVar

from ftrecipes.config.errors import CheckpointError, PeerError, RecipeError
from ftrecipes.runtime.collectives import gather_objects
from ftrecipes.runtime.nodes import beating, wait_for_all
from ftrecipes.runtime.world import World

Result = TypeVar("Result")


def first_does(action: Callable[[], Result], world: World) -> Result:
    """What `action` gives on rank 0, which alone runs it; on all ranks, so it can be pickled.

    Called by all ranks; no collectives in `action`. When it raises, all ranks raise.
    """
    return _agreed(action if world.rank == 0 else _nothing, world)[0]


def all_do(action: Callable[[], None], world: World) -> None:
    """Every rank runs `action`, without collectives; when any raises, all raise the first's error.

    Called by all ranks. An error of a rank other than 0 says which rank it is of.
    """
    _agreed(action, world)


def _nothing() -> None:
    """What the other ranks do meanwhile."""


def _agreed(action: Callable[[], Result], world: World) -> list[Result | None]:
    """What `action` gave on each rank; or the error of the first rank where it raised."""
    result = own = told = None
    try:
        with beating(world.watch):  # a large file takes its time
            result = action()
    except PeerError:
        raise  # the others have ended, or end by themselves
    except Exception as error:  # noqa: BLE001  raised below, on all ranks
        own, told = error, _told(error, world)
    wait_for_all(world)
    everyone = gather_objects((result, told), world)
    for rank, (_, failure) in enumerate(everyone):
        if failure is None:
            continue
        if rank == world.rank == 0:
            raise own
        kind, text = failure
        raise kind(text) from (own if rank == world.rank else None)
    return [result for result, _ in everyone]


def _told(error: Exception, world: World) -> tuple[type[RecipeError], str]:
    """What the other ranks raise. Not the error itself: not every one can be sent."""
    kind = type(error) if isinstance(error, RecipeError) else CheckpointError
    where = f"rank {world.rank} on host {world.host}: " if world.rank else ""
    return kind, f"{where}{error or type(error).__name__}"
