"""A file that grows by whole records."""

import errno
import os
from contextlib import suppress
from pathlib import Path


class WholeFile:
    """Each write is with the operating system at once, whole or not at all."""

    def __init__(self, path: Path):
        self.path = path
        self._file = path.open("wb", buffering=0)

    def write(self, record: bytes) -> None:
        """Raises OSError when `record` could not be written; the file is then as it was."""
        end = self._file.tell()
        try:
            if self._file.write(record) != len(record):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with suppress(OSError):  # a part of it would spoil the next
                self._file.seek(end)
                self._file.truncate()
            raise

    def close(self) -> None:
        """Nothing more is written."""
        self._file.close()
