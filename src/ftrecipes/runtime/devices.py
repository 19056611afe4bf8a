"""What a device can do. With `report`, the only place that calls what one kind alone has."""

from functools import cache

import torch


@cache
def cuda_capability(device: torch.device) -> tuple[int, int]:
    """Compute capability of a CUDA device, (8, 0) for an A100; (0, 0) for any other kind."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of the host on `device`; on CUDA without a wait for the work that is queued there.

    Elsewhere torch does not promise that the copy is made before the host's memory is used anew
    (https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html).
    """
    return tensor.to(device, non_blocking=device.type == "cuda")
