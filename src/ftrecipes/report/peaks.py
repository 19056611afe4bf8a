"""Peak rates of accelerators, for the model FLOPs utilization."""

import re

import torch

# Name as the driver gives it -> dense TFLOP/s by compute dtype, without sparsity and without TF32.
# Source: the vendors' data sheets, on the pages beside them.
_PEAKS: tuple[tuple[str, dict[str, float]], ...] = (
    # https://www.nvidia.com/en-us/data-center/dgx-b200/ (HGX B200, an eighth)
    (r"NVIDIA B200", {"bfloat16": 2250, "float16": 2250}),
    # https://www.nvidia.com/en-us/data-center/h200/
    (r"NVIDIA H200", {"bfloat16": 989, "float16": 989, "float32": 67}),
    (r"NVIDIA H200 NVL", {"bfloat16": 835, "float16": 835, "float32": 60}),
    # https://www.nvidia.com/en-us/data-center/h100/
    (r"NVIDIA H100 80GB HBM3", {"bfloat16": 989, "float16": 989, "float32": 67}),
    (r"NVIDIA H100 NVL", {"bfloat16": 835, "float16": 835, "float32": 60}),
    (r"NVIDIA H100 PCIe", {"bfloat16": 756, "float16": 756, "float32": 51}),
    # https://www.nvidia.com/en-us/data-center/a100/
    (r"(NVIDIA )?A100-\S+", {"bfloat16": 312, "float16": 312, "float32": 19.5}),
    (r"NVIDIA A100 80GB PCIe", {"bfloat16": 312, "float16": 312, "float32": 19.5}),
    # https://www.nvidia.com/en-us/data-center/products/a10-gpu/
    (r"(NVIDIA )?A10", {"bfloat16": 125, "float16": 125, "float32": 31.2}),
    # https://www.nvidia.com/en-us/data-center/l4/ and .../l40s/
    (r"NVIDIA L4", {"bfloat16": 121, "float16": 121, "float32": 30.3}),
    (r"NVIDIA L40S", {"bfloat16": 362, "float16": 362, "float32": 91.6}),
    # https://www.nvidia.com/en-us/data-center/v100/
    (r"(Tesla )?V100-SXM2-\S+", {"float16": 125, "float32": 15.7}),
    # https://www.nvidia.com/en-us/data-center/tesla-t4/
    (r"(Tesla )?T4", {"float16": 65, "float32": 8.1}),
)


def peak_flops(name: str, dtype: str) -> float | None:
    """Dense FLOP/s of the chip of that name in `dtype` (`bfloat16`, ...); None where not known."""
    for pattern, peaks in _PEAKS:
        if re.fullmatch(pattern, name):
            return peaks[dtype] * 1e12 if dtype in peaks else None
    return None


def device_peak(device: torch.device, dtype: str) -> float | None:
    """The same for a device of this machine; None for a CPU, and for float32 by way of TF32."""
    if device.type != "cuda":
        return None
    if dtype == "float32" and torch.get_float32_matmul_precision() != "highest":
        return None
    return peak_flops(torch.cuda.get_device_name(device), dtype)
