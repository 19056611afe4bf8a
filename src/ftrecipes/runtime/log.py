"""The run's log: rank 0 writes to standard error, the other ranks keep quiet.

The ladder: nothing for what is right, `info` for what one may want to know, `warning` for what the
user should act on. What ends a run is an exception, and the command shows it (commands/exits.py).
"""

import logging
import os
import sys
import warnings
from typing import TYPE_CHECKING

from ftrecipes.config.visible import visible_lines
from ftrecipes.runtime.ranks import is_first

if TYPE_CHECKING:
    from tqdm import tqdm

_logger = logging.getLogger("ftrecipes")
# bitsandbytes 0.50 warns while it is imported, on CPUs with bfloat16 units, that it can not fetch a
# kernel for inference from the hub; training does not use it.
_IRRELEVANT = ("bitsandbytes.backends.cpu.ops",)


def start() -> None:
    """Send the log of rank 0 to standard error; call once, at the start of a command."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    logging.addLevelName(logging.INFO, "info")
    logging.addLevelName(logging.WARNING, "warning")
    _logger.handlers[:] = [handler]
    for name in _IRRELEVANT:
        logging.getLogger(name).setLevel(logging.ERROR)
    # transformers 5.24 warns of names that it and PEFT use themselves; nobody else can act on it.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|peft)\.")
    # The same, laid at the door of torch: PEFT 0.21 hands a prefix over by that name.
    warnings.filterwarnings("ignore", "`past_key_values` is deprecated", FutureWarning)
    # PEFT 0.21 says so of patterns that it has put in itself, and followed; we check the user's.
    warnings.filterwarnings("ignore", r"The following (rank|alpha)_pattern keys", RuntimeWarning)
    if not sys.stderr.isatty():
        # Libraries' bars write a line for each refresh where there is no terminal.
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("TQDM_DISABLE", "1")  # the bar of a .gguf file knows only this
    # A connection that breaks is told with forty lines of C++ frames; the watch says whose it was.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # torch 2.13's profiler says when it starts and stops, one level above all errors.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    # transformers' warnings are for whoever calls it; what a user of ours should know, we say.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    _logger.propagate = False
    _logger.setLevel(logging.INFO if is_first() else logging.CRITICAL)


def info(message: str) -> None:
    """Something one may want to know."""
    _logger.info(visible_lines(message))


def warning(message: str) -> None:
    """Something the user should act on; the message says how."""
    _logger.warning(visible_lines(message))


def progress(total: int, *, unit: str) -> "tqdm":
    """A bar for long work before the first step; on rank 0's terminal only."""
    from tqdm import tqdm  # here, because settings are checked before it is needed

    return tqdm(
        total=total, unit=unit, disable=None if _logger.isEnabledFor(logging.INFO) else True
    )
