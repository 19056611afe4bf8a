"""Compare what was written with what was trained, tensor by tensor and bit by bit."""

from collections.abc import Mapping
from typing import Protocol

import torch

from ftrecipes.config.errors import CheckpointError
from ftrecipes.parallel.engine import Engine


class Stored(Protocol):
    """A tensor, or one in a file that is read where it is sliced (`InFile`)."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def __getitem__(self, rows) -> torch.Tensor: ...


class InFile:
    """A tensor in an open safetensors file; `part` is what its `get_slice` gives."""

    def __init__(self, part):
        self._part = part
        self.shape = torch.Size(part.get_shape())

    @property
    def dtype(self) -> torch.dtype:
        """Taken from no rows at all: safetensors has names of its own for dtypes."""
        return (self._part[:0] if self.shape else self._part[...]).dtype

    def __getitem__(self, rows) -> torch.Tensor:
        return self._part[rows]


def compare(
    saved: Mapping[str, Stored],
    *,
    trained: Mapping[str, torch.Tensor],
    known: Mapping[str, torch.Tensor],
    engine: Engine,
) -> None:
    """Check that `saved` holds all of `trained`, nothing outside `known`, and the same bits.

    Of a sharded tensor each rank compares its own rows; together they have seen all. Any rank may
    call it alone. Raises CheckpointError naming the first ten differences.
    """
    faults = [f"{name}: trained, but not in the file" for name in sorted(trained.keys() - saved)]
    faults += [
        f"{name}: in the file, but not in the model" for name in sorted(saved.keys() - known)
    ]
    for name in sorted(saved.keys() & known.keys()):
        fault = difference(live=known[name], saved=saved[name], engine=engine)
        faults += [f"{name}: {fault}"] if fault else []
    refuse(faults)


def refuse(faults: list[str]) -> None:
    """Raise CheckpointError with the first ten of `faults`, when there are any."""
    if faults:
        more = [f"and {len(faults) - 10} more"] if len(faults) > 10 else []
        raise CheckpointError(
            "What was written is not what was trained, so it was not published.\n"
            + "".join(f"  {line}\n" for line in faults[:10] + more)
            + "  do: check the disk; if it is sound, report this with the lines above"
        )


def difference(*, live: torch.Tensor, saved: Stored, engine: Engine) -> str:
    """What differs between a live tensor and its saved copy, in the rows that this rank holds.

    Empty when they are the same bits.
    """
    if (live.shape, live.dtype) != (saved.shape, saved.dtype):
        return (
            f"{tuple(saved.shape)} {saved.dtype} in the file, "
            f"{tuple(live.shape)} {live.dtype} in the model"
        )
    own = engine.local(live.detach()).to("cpu")
    if own.shape == live.shape:
        rows = ...
    else:
        share = engine.share.rows(len(live))
        rows = slice(share.start, share.stop)
    # Compared as bytes, so that NaN equals itself and -0.0 differs from 0.0.
    same = torch.equal(_bytes(own), _bytes(saved[rows]))
    return "" if same else "other values in the file than in the model"


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
