"""Memory of the host against psutil, and devices that are not there."""

import mmap
import sys
import threading
import time

import psutil
import pytest
import torch

from ftrecipes.report.memory import (
    GIB,
    MemoryMeter,
    describe,
    device_memory,
    host_memory,
    reset_device_peak,
)

CPU = torch.device("cpu")
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def fresh_pages(size: int) -> mmap.mmap:
    """Memory straight from the kernel, every page touched; an allocator might reuse its own."""
    block = mmap.mmap(-1, size)
    for page in range(0, size, mmap.PAGESIZE):
        block[page] = 1
    return block


@linux
def test_host_numbers_are_the_kernels_and_follow_an_allocation():
    before = host_memory()
    # The kernel's counters are a little late, and the interpreter goes on allocating: 1.5 %.
    assert before["host_rss_bytes"] == pytest.approx(psutil.Process().memory_info().rss, rel=0.015)
    block = fresh_pages(64 * 2**20)
    during = host_memory()
    assert during["host_rss_bytes"] - before["host_rss_bytes"] == pytest.approx(
        64 * 2**20, abs=8 * 2**20
    )
    block.close()
    after = host_memory()
    # The kernel adds up per-processor counters, so that its numbers are a little late.
    assert after["host_peak_rss_bytes"] > during["host_rss_bytes"] - 2 * 2**20
    assert after["host_rss_bytes"] < during["host_rss_bytes"]


@linux
def test_epoch_tells_growth_and_whole_run_the_highest():
    meter = MemoryMeter(CPU)
    block = fresh_pages(64 * 2**20)
    first = meter.epoch()
    block.close()
    second = meter.epoch()
    assert first["host_rss_growth_bytes"] > 48 * 2**20
    assert second["host_rss_growth_bytes"] < 32 * 2**20
    assert meter.whole_run()["host_rss_growth_bytes"] == first["host_rss_growth_bytes"]
    assert not [name for name in first if name.startswith("device")]


def test_text_has_units_and_decimals():
    text = describe(
        {
            "device_peak_allocated_bytes": 3 * GIB,
            "device_alloc_retries": 2,
            "host_rss_bytes": GIB // 2,
            "host_peak_rss_bytes": GIB,
            "host_rss_growth_bytes": -GIB // 4,
        }
    )
    assert text == (
        "host 0.500 GiB, host peak 1.000 GiB, host growth -0.250 GiB, "
        "device peak allocated 3.000 GiB, device alloc retries 2"
    )
    assert describe({}) == ""


def test_cpu_run_asks_no_accelerator_even_where_one_claims_to_be_there(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    reset_device_peak(CPU)
    assert device_memory(CPU) == {}
    assert MemoryMeter(CPU).whole_run() == {}


def test_measuring_starts_no_thread_and_costs_no_idle_time():
    threads = threading.active_count()
    meter = MemoryMeter(CPU)
    began = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - began < 0.05 * 0.2
    meter.epoch()
    assert threading.active_count() == threads


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_device_peaks_are_per_epoch():
    """Device memory: peaks of an epoch and of the run."""
    device = torch.device("cuda", 0)
    meter = MemoryMeter(device)
    block = torch.ones(64 * 2**20, dtype=torch.uint8, device=device)
    del block
    first, second = meter.epoch(), meter.epoch()
    assert first["device_peak_allocated_bytes"] >= 64 * 2**20
    assert second["device_peak_allocated_bytes"] < 64 * 2**20
    assert meter.whole_run()["device_peak_allocated_bytes"] == first["device_peak_allocated_bytes"]
    assert {
        "device_peak_reserved_bytes",
        "device_peak_active_bytes",
        "device_alloc_retries",
    } <= set(first)
