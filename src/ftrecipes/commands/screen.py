"""Standard streams of a command, which its caller may have closed, or stopped reading."""

import os
import sys


def open_streams() -> None:
    """Let what is written to a closed stream (None, in Python) go nowhere. At a command's start."""
    # They stay open as long as the process.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def show(text: str) -> None:
    """Write `text` to standard output; a reader that left early (`| head`) has what it wanted."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # What is left in the buffer, Python writes at its end: that must go nowhere as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
