"""Floating-point operations of one step, counted while torch computes them."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Self

import torch
from torch.utils.flop_counter import (
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from ftrecipes.model.quantized_ops import LINEAR_4BIT, LINEAR_8BIT
from ftrecipes.runtime import log


def _attention_flops(query, key, value, *rest, out_shape=None, **others) -> int:
    return sdpa_flop_count(query, key, value)


def _attention_backward_flops(grad, query, key, value, *rest, out_shape=None, **others) -> int:
    return sdpa_backward_flop_count(grad, query, key, value)


def _grouped_flops(first, second, *rest, out_shape=None, **others) -> int:
    """Rows [T, K] by matrices [E, K, N], or one matrix [M, N] an expert of [M, T] and [T, N]."""
    each = first if len(second) == 3 else first[-2:]
    return 2 * prod(each) * second[-1]


def _quantized_flops(x, weight, bias, *rest, out_shape=None, **others) -> int:
    """Inputs [..., I] by what stands for a matrix [O, I]."""
    return 2 * prod(x) * out_shape[-1]


# torch 2.13 has formulas neither for the attention of a CPU nor for experts.
_FORMULAS = {
    LINEAR_4BIT: _quantized_flops,
    LINEAR_8BIT: _quantized_flops,
    torch.ops.aten._grouped_mm: _grouped_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
}


class _Whole:
    """Stands for torch's ModuleTracker, whose gradient hooks refuse the chunked head (torch 2.13:
    hooks on leaves do not work inside autograd.grad). Everything belongs to the whole."""

    parents = frozenset({"Global"})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class _Counter(FlopCounterMode):
    def __init__(self):
        super().__init__(display=False, custom_mapping=_FORMULAS)
        self.mod_tracker = _Whole()


class FlopCounter:
    """Counts what torch computes in one step, recomputation and padding included."""

    def __init__(self, start: int, total: Callable[[float], float] = lambda own: own):
        """`total` adds up what the ranks have counted; all of them watch the same step."""
        self._start = start
        self._total = total
        self._is_done = False

    @contextmanager
    def watch(self, step: int, write: Callable[..., None]) -> Iterator[None]:
        """Around step `step`; counting slows it down, and so its rate is not that of others."""
        if step != self._start:
            yield
            return
        began = time.perf_counter()
        with _Counter() as counter:
            yield
        seconds = time.perf_counter() - began
        flops = int(self._total(counter.get_total_flops()))
        self._is_done = True
        tflops = flops / seconds / 1e12
        write("flop_count", step=step, flops=flops, seconds=seconds, tflops=tflops)
        log.info(
            f"step {step} took {flops:.4g} floating-point operations, counted, in {seconds:.2f} s: "
            f"{tflops:.3g} TFLOP/s"
        )

    def close(self) -> None:
        """Say so when the step never came."""
        if not self._is_done:
            log.warning(
                f"--flop_counter: nothing was counted, because the run ended before step "
                f"{self._start} was over. Lower --flop_counter_start"
            )
