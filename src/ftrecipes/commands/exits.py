"""How a command ends: what is shown, and the exit code.

0 done; 1 out of memory, or a fault of ours or of a library; 2 flags or configuration file; 3 data;
4 model or adapter; 5 saving or reading back; 6 training could not go on; 7 another process of the
run died, failed or is stuck; 128 + n stopped by signal n (130: Ctrl-C).
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from ftrecipes.commands.screen import open_streams, show
from ftrecipes.config.errors import (
    CheckpointError,
    ConfigError,
    PeerError,
    RecipeError,
    TrainingError,
)
from ftrecipes.config.help import help_text
from ftrecipes.config.visible import visible_lines
from ftrecipes.runtime.ranks import Ranks, read_ranks
from ftrecipes.runtime.signals import Stopped, stops_raised

INTERRUPTED = 130
STARTED_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"
# Those that all processes raise alike, whoever tells them, and those that name a rank themselves.
WHOSE_IS_SAID = (ConfigError, CheckpointError, TrainingError, PeerError)


def run_command(
    name: str, argv: list[str] | None, action: Callable[[list[str]], object]
) -> NoReturn:
    """Run the command `name` on `argv` (default: the process's own words), or print its help."""
    open_streams()
    words = sys.argv[1:] if argv is None else argv
    if "--help" in words or "-h" in words:
        show(help_text(name))
        sys.exit(0)
    end(lambda: action(words))


def end(action: Callable[[], object]) -> NoReturn:
    """Run `action` and leave the process with the exit code of how it ended.

    A user's mistake is shown as its message alone; the traceback is in the run folder when there is
    one. Anything else is shown with its traceback. Of several processes each names its rank, and
    what all of them find is told once a machine.
    """
    with stops_raised():
        try:
            action()
        except RecipeError as error:
            words = str(error)
            if not _tells(error):
                words = words.partition("\n")[0]
            else:
                notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
                is_own = not isinstance(error, WHOSE_IS_SAID)
                told = visible_lines(f"{words}{notes}")
                sys.stderr.write(f"error: {_name() if is_own else ''}{told}\n")
            _leave(error.exit_code, words)
        except Stopped as stop:
            if _ranks().local_rank == 0:
                sys.stderr.write(f"{stop}\n")
            _leave(128 + stop.number, f"{stop}")
        except KeyboardInterrupt:
            sys.stderr.write("interrupted\n")
            _leave(INTERRUPTED, "interrupted")
        except Exception as error:  # noqa: BLE001  the process ends here, and shows what it was
            # In one piece: other processes write too.
            sys.stderr.write(_words(error))
            _leave(1, f"{type(error).__name__}: {error}")
    sys.exit(0)


def _words(error: Exception) -> str:
    """What an error that is none of ours shows: too little memory is no fault to look for."""
    first = str(error).partition("\n")[0]
    # By name, as torch takes seconds to import. On a CPU torch has no type of its own for it.
    is_full = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in first
    if not is_full and not isinstance(error, MemoryError):
        why = "this is a fault of ftrecipes or of a library, not of the flags"
        return f"{traceback.format_exc()}error: {_name()}{why}\n"
    notes = "".join(f"{note}\n" for note in getattr(error, "__notes__", ()))
    return (
        f"error: {_name()}out of memory: {first}\n"
        "  do: try --activation_checkpointing full (docs/activations.md), a smaller "
        "--batch_size_training or --context_length, or --quantization 4bit with --use_peft\n"
        f"{notes}"
    )


def _tells(error: RecipeError) -> bool:
    if error.is_told is None and isinstance(error, ConfigError):
        # Found before the processes could speak to each other. torchrun gives all of a machine the
        # same words; of those that were started by hand, one may be the only one that is wrong.
        return _ranks().local_rank == 0 or STARTED_BY_TORCHRUN not in os.environ
    return not error.is_told


def _name() -> str:
    """The rank, where there are several."""
    ranks = _ranks()
    return f"rank {ranks.rank}: " if ranks.size > 1 else ""


def _tell_torchrun(words: str) -> None:
    """Leave the words of an error where torchrun looks for them: its summary, which ends the
    screen with a traceback of its own, then repeats them.

    The form is that of torch 2.13 (distributed/elastic/multiprocessing/errors). torch has a writer
    for it, which would have to be imported for a misspelt flag.
    """
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        said = {"message": words, "extraInfo": {"timestamp": str(int(time.time()))}}
        with suppress(OSError):  # a full disk: the words are on the screen
            Path(path).write_text(json.dumps({"message": said}), encoding="utf-8")


def _leave(code: int, words: str) -> NoReturn:
    _tell_torchrun(words)
    if _ranks().size > 1:
        # The process group is broken: libraries that tidy up at exit may wait for the dead.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _ranks() -> Ranks:
    try:
        return read_ranks()
    except ConfigError:
        return Ranks(0, 1, 0, 1)
