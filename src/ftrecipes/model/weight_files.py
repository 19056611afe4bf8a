"""The safetensors files of a model: where they are, what is in them, and slices of it."""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file
from transformers.utils.hub import get_checkpoint_shard_files

from ftrecipes.config.errors import ModelError
from ftrecipes.model.ranges import Sliceable
from ftrecipes.model.resolve import ModelSource, loading

# safetensors' names of the dtypes that the statistics of packed weights have
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "U8": torch.uint8}


@dataclass(frozen=True)
class Stated:
    """What a file says of one weight."""

    shape: tuple[int, ...]
    dtype: str  # in the spelling of safetensors

    @property
    def numel(self) -> int:
        """Number of its elements."""
        return prod(self.shape)


def safetensors_files(source: ModelSource) -> list[str]:
    """Paths of the files with weights, of a folder or a hub id; [] when there are none.

    A hub id's files are fetched when they are not there yet. As from_pretrained: one file before
    an index.
    """
    if source.gguf_file is not None:
        return []
    with loading(source.name):
        named = source.config.to_dict().get("transformers_weights")
        for name in [named] if named else [SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME]:
            path = cached_file(source.path, name, _raise_exceptions_for_missing_entries=False)
            if path is not None and path.endswith(".index.json"):
                return get_checkpoint_shard_files(source.path, path)[0]
            if path is not None and path.endswith(".safetensors"):
                return [path]
    return []


class WeightFiles:
    """Open files; a context manager that closes them. `bytes_read` counts what was sliced."""

    def __init__(self):
        self.catalogue: dict[str, Stated] = {}
        self.bytes_read = 0
        self._stack = ExitStack()
        self._slices: dict[str, Sliceable] = {}

    def __enter__(self) -> "WeightFiles":
        return self

    def __exit__(self, *error) -> None:
        self._slices.clear()
        self._stack.close()

    def open(self, paths: Iterable[str]) -> None:
        """Read the headers; each file must be as long as its header says. Raises ModelError."""
        for path in paths:
            self._open(path)

    def source(self, key: str) -> Sliceable:
        """The weight of that name, read where it is sliced."""
        return _Counted(self, self._slices[key])

    def _open(self, path: str) -> None:
        try:
            file = self._stack.enter_context(safe_open(path, framework="pt", device="cpu"))
        except (OSError, SafetensorError) as error:
            missing = not Path(path).exists()
            do = "download it again" if missing else "check that it is complete; download it again"
            raise ModelError(
                f"The weight file {path} {'is missing' if missing else 'can not be read'}.\n"
                f"  got: {error}\n  do: {do}"
            ) from error
        for key in file.keys():  # noqa: SIM118  a file is no mapping
            part = file.get_slice(key)
            self._slices[key] = part
            self.catalogue[key] = Stated(tuple(part.get_shape()), part.get_dtype())


class _Counted:
    """A slice of a file that counts its bytes; transformers' converters know it as its own."""

    def __init__(self, files: WeightFiles, part):
        self._files, self._part = files, part

    def __getitem__(self, index):
        value = self._part[index]
        self._files.bytes_read += value.nbytes
        return value

    def get_shape(self) -> list[int]:
        return self._part.get_shape()

    def get_dtype(self) -> str:
        return self._part.get_dtype()
