"""Processes of this machine, as Linux tells of them; elsewhere nothing is known of any."""

import os
import socket
from pathlib import Path

# A process that has ended and that its parent has not yet asked for is a zombie (proc(5)).
_ENDED = ("Z", "X", "x")
_STOPPED = ("T", "t")


def place() -> str:
    """Where process ids mean what they mean here; empty where that can not be told.

    Two containers of one machine, or two machines cloned from one image, have places of their own.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {socket.gethostname()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def started(pid: int) -> str:
    """When a living process of this place started, in ticks since boot; empty when it is gone.

    With the pid it names a process: a pid alone may be another's by now.
    """
    fields = _fields(pid)
    return fields[19] if fields and fields[0] not in _ENDED else ""


def is_stopped(pid: int) -> bool:
    """Whether a process of this place is stopped, by SIGSTOP or a debugger."""
    fields = _fields(pid)
    return bool(fields) and fields[0] in _STOPPED


def _fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the third on, which is the state; none when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    # The second field is the program's name in parentheses, in which anything may stand.
    return text.rpartition(")")[2].split()
