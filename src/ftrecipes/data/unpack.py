"""The bytes of a local file, unpacked where its name says that it is packed (gzip, zstandard)."""

import gzip
import io
import zlib
from pathlib import Path
from typing import BinaryIO

from ftrecipes.config.data_files import PACKINGS, plain_name
from ftrecipes.config.errors import DataError

# How a packed file begins; a zstandard file may hold a frame without content first.
MAGIC = {".gz": (b"\x1f\x8b",), ".zst": (b"\x28\xb5\x2f\xfd", b"\x2a\x4d\x18")}
CHUNK_BYTES = 2**20


def open_plain(path: Path) -> BinaryIO:
    """The file, open for reading. Raises DataError when name and content say different things.

    What is cut or damaged inside is a DataError when it is read.
    """
    packing = path.name[len(plain_name(path.name)) :].lower()
    with path.open("rb") as file:
        start = file.read(4)
    found = next((name for name in PACKINGS if _begins(start, MAGIC[name])), "")
    if start and found != packing:
        plain = plain_name(path.name)
        is_packed = f"packed as {found}" if found else "not packed that way"
        raise DataError(
            f"{path.name}: its content is {is_packed}, whatever its name says.\n"
            f"  got: a file that begins with {start!r}\n"
            f"  do: name it {plain}{found}" + ("" if found else ", if that is what it holds")
        )
    if not packing:
        return path.open("rb")
    return io.BufferedReader(_Unpacked(path, packing), CHUNK_BYTES)


def _begins(start: bytes, magic: tuple[bytes, ...]) -> bool:
    # The first byte of a frame without content is any of sixteen.
    return start.startswith(magic[0]) or start[1:] in magic[1:]


class _Unpacked(io.RawIOBase):
    """Reads a packed file; what its own library raises names the file."""

    def __init__(self, path: Path, packing: str):
        self._name = path.name
        self._file = path.open("rb")
        self._content = gzip.GzipFile(fileobj=self._file) if packing == ".gz" else _zst(self._file)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        try:
            return self._content.readinto(buffer)
        except (EOFError, OSError, zlib.error) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk's
            raise DataError(
                f"{self._name}: the packed file is cut or damaged.\n  got: {error}\n"
                "  do: copy or download it again, or pack it again"
            ) from error

    def close(self) -> None:
        self._file.close()
        super().close()


def _zst(file: BinaryIO) -> io.IOBase:
    import pyarrow  # a part of `datasets`, and it brings the library; takes a moment

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd")
