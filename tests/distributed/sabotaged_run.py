"""The recipe with an accident in one rank: `sabotaged_run.py RANK PHASE DEED FLAGS...`.

When rank RANK enters the first phase that begins with PHASE (see Watch), it is killed (`kill`), is
asked to stop (`stop`), or has an error of its own (`fail`).
"""

import os
import signal
import sys

from ftrecipes.commands.finetune import main
from ftrecipes.config.errors import DataError
from ftrecipes.runtime.watcher import Watcher


def fail() -> None:
    """What a user can mend, but only this rank knows."""
    raise DataError("row 7 is broken\n  do: mend it")


DEEDS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "fail": fail,
}


def sabotage(phase: str, deed: str) -> None:
    """Let `deed` happen, once, in `phase` of this rank."""
    enter, left = Watcher.phase, [deed]

    def enter_and_act(watcher: Watcher, text: str) -> None:
        enter(watcher, text)
        if text.startswith(phase) and left:
            DEEDS[left.pop()]()

    Watcher.phase = enter_and_act


if __name__ == "__main__":
    rank, phase, deed, *flags = sys.argv[1:]
    if os.environ["RANK"] == rank:
        sabotage(phase, deed)
    main(flags)
