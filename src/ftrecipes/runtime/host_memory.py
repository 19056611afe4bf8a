"""Memory of the host that was freed and is not yet the system's again."""

import ctypes
import platform
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def give_back_freed() -> None:
    """Return what this process has freed to the system; does nothing where there is no glibc.

    glibc keeps freed memory that lies below something in use. Where short-lived and lasting tensors
    take turns, that is as much as the lasting ones (measured: benchmarks/loading.py, 4 ranks).
    """
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)  # https://man7.org/linux/man-pages/man3/malloc_trim.3.html


def free_at_once() -> None:
    """From here on memory of 4 MiB and more goes back to the system as it is freed.

    glibc raises that limit with use, up to 32 MiB, and keeps what is smaller: gathered blocks then
    stay, which shares were to save. Nothing where there is no glibc.
    """
    library = _glibc()
    if library is not None:
        # https://man7.org/linux/man-pages/man3/mallopt.3.html
        library.mallopt(_M_MMAP_THRESHOLD, 4 * 2**20)
        library.mallopt(_M_TRIM_THRESHOLD, 4 * 2**20)


@cache
def _glibc() -> ctypes.CDLL | None:
    return ctypes.CDLL("libc.so.6") if platform.libc_ver()[0] == "glibc" else None
