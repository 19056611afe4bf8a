"""Memory of the process and of its accelerator, in bytes, read on demand (no thread).

A field that a device does not have is absent. Names say what is counted: `host_rss_bytes` is the
memory of the process now, `host_peak_rss_bytes` its highest since the process began.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import torch

GIB = 2**30

# torch's name in memory_stats -> ours
_DEVICE_FIELDS = {
    "allocated_bytes.all.peak": "device_peak_allocated_bytes",
    "reserved_bytes.all.peak": "device_peak_reserved_bytes",
    "active_bytes.all.peak": "device_peak_active_bytes",
    "num_alloc_retries": "device_alloc_retries",
    "num_ooms": "device_ooms",
}


class MemoryMeter:
    """Memory per epoch and over the whole run, on one device."""

    def __init__(self, device: torch.device):
        self._device = device
        self._start_rss_bytes = host_memory().get("host_rss_bytes", 0)
        self._highest: dict[str, int] = {}
        reset_device_peak(device)

    def epoch(self) -> dict[str, int]:
        """Fields since the last call (device peaks) or now (the rest); starts the next epoch."""
        fields = device_memory(self._device) | host_memory()
        if "host_rss_bytes" in fields:
            fields["host_rss_growth_bytes"] = fields["host_rss_bytes"] - self._start_rss_bytes
        for name, value in fields.items():
            self._highest[name] = max(value, self._highest.get(name, value))
        reset_device_peak(self._device)
        return fields

    def whole_run(self) -> dict[str, int]:
        """The highest value of each field over all epochs."""
        return dict(self._highest)


def highest(fields: Sequence[dict[str, int]]) -> dict[str, int]:
    """Each field of several processes, of the one where it is highest."""
    names = dict.fromkeys(name for own in fields for name in own)
    return {name: max(own[name] for own in fields if name in own) for name in names}


def host_memory() -> dict[str, int]:
    """Resident memory of this process: now and at its peak, where the system tells."""
    if sys.platform == "linux":
        # Not getrusage: its peak is inherited from the parent process through exec.
        lines = (line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
        status = {name: value.split() for name, value in lines}
        return {
            "host_rss_bytes": int(status["VmRSS"][0]) * 1024,
            "host_peak_rss_bytes": int(status["VmHWM"][0]) * 1024,
        }
    if sys.platform == "darwin":
        from resource import RUSAGE_SELF, getrusage  # this module does not exist on Windows

        return {"host_peak_rss_bytes": getrusage(RUSAGE_SELF).ru_maxrss}
    return {}


def device_memory(device: torch.device) -> dict[str, int]:
    """Peak bytes and allocator events of an accelerator since `reset_device_peak`; {} on a CPU.

    MPS keeps no peaks: there the fields are what is allocated now, by tensors and by the driver.
    """
    if device.type == "cpu":
        return {}
    if device.type == "mps":
        return {
            "device_allocated_bytes": torch.mps.current_allocated_memory(),
            "device_driver_bytes": torch.mps.driver_allocated_memory(),
        }
    stats = torch.accelerator.memory_stats(device)
    return {ours: stats[name] for name, ours in _DEVICE_FIELDS.items() if name in stats}


def reset_device_peak(device: torch.device) -> None:
    """Start a new peak on an accelerator that keeps one."""
    if device.type not in ("cpu", "mps"):
        torch.accelerator.reset_peak_memory_stats(device)


def describe(fields: dict[str, int]) -> str:
    """One line for a person, in GiB: `host 1.23 GiB, peak 1.50 GiB (+0.20 GiB since the start)`."""
    parts = []
    if "host_rss_bytes" in fields:
        parts.append(f"host {_gib(fields['host_rss_bytes'])}")
    if "host_peak_rss_bytes" in fields:
        parts.append(f"host peak {_gib(fields['host_peak_rss_bytes'])}")
    if "host_rss_growth_bytes" in fields:
        parts.append(f"host growth {fields['host_rss_growth_bytes'] / GIB:+.3f} GiB")
    for name, value in fields.items():
        if name.startswith("device_"):
            label = name.removesuffix("_bytes").replace("_", " ")
            parts.append(f"{label} {_gib(value) if name.endswith('_bytes') else value}")
    return ", ".join(parts)


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.3f} GiB"
