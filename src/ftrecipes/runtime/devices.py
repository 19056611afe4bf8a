"""What a device can do. With `report`, the only place that asks one kind of device by its name."""

from functools import cache

import torch


@cache
def cuda_capability(device: torch.device) -> tuple[int, int]:
    """Compute capability of a CUDA device, (8, 0) for an A100; (0, 0) for any other kind."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
