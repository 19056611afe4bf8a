"""Compare what was written with what was trained, tensor by tensor and bit by bit."""

from collections.abc import Mapping

import torch

from ftrecipes.config.errors import CheckpointError


def compare(
    saved: Mapping[str, torch.Tensor],
    *,
    trained: Mapping[str, torch.Tensor],
    known: Mapping[str, torch.Tensor],
) -> None:
    """Check that `saved` holds all of `trained`, nothing outside `known`, and the same bits.

    Raises CheckpointError naming the first ten differences.
    """
    faults = [f"{name}: trained, but not in the file" for name in sorted(trained.keys() - saved)]
    faults += [
        f"{name}: in the file, but not in the model" for name in sorted(saved.keys() - known)
    ]
    for name in sorted(saved.keys() & known.keys()):
        fault = difference(live=known[name], saved=saved[name])
        faults += [f"{name}: {fault}"] if fault else []
    if not trained:
        faults.append("the model has no trainable parameter")
    if faults:
        more = [f"and {len(faults) - 10} more"] if len(faults) > 10 else []
        raise CheckpointError(
            "What was written is not what was trained, so it was not published.\n"
            + "".join(f"  {line}\n" for line in faults[:10] + more)
            + "  do: check the disk; if it is sound, report this with the lines above"
        )


def difference(*, live: torch.Tensor, saved: torch.Tensor) -> str:
    """What differs between a live tensor and its saved copy; empty when they are the same bits."""
    live = live.detach().to("cpu")
    if (live.shape, live.dtype) != (saved.shape, saved.dtype):
        return (
            f"{tuple(saved.shape)} {saved.dtype} in the file, "
            f"{tuple(live.shape)} {live.dtype} in the model"
        )
    # Compared as bytes, so that NaN equals itself and -0.0 differs from 0.0.
    same = torch.equal(_bytes(live), _bytes(saved))
    return "" if same else "other values in the file than in the model"


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
