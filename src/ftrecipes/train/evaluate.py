"""Evaluation: sum of token losses / counted labels over a split, each row once."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from ftrecipes.config.errors import DataError
from ftrecipes.data.loader import Loader
from ftrecipes.data.packing import RowIds
from ftrecipes.runtime.collectives import sum_floats
from ftrecipes.train.step import BatchLoss
from ftrecipes.train.stop import NEVER, Stop, stop_together


@dataclass(frozen=True)
class Evaluation:
    """Loss of a split; `rows` < `total_rows` when `max_eval_step` cut it."""

    loss: float
    perplexity: float
    num_tokens: int
    positions: int
    rows: int
    total_rows: int
    seconds: float
    set_losses: dict[str, float]
    """By data set, where there are several; without those of which no label counts."""


def evaluate(
    batch_loss: BatchLoss, loader: Loader, *, max_eval_step: int = 0, stop: Stop = NEVER
) -> Evaluation:
    """Mean token loss over the rows of `loader`, without dropout; the model's mode is put back.

    Every rank calls it, computes its own micro-batches, and gets the numbers of all.
    `max_eval_step` > 0 takes that many micro-batches, spread evenly over the split. Nothing but
    sums is kept from one to the next. Raises DataError when no label counts, and Stopped when a
    rank was asked to stop.
    """
    began = time.perf_counter()
    plan = loader.evaluation_plan(max_eval_step)
    totals = loader.totals(plan)
    if totals.num_tokens == 0:
        raise DataError(
            "No label of the validation rows counts, so there is no evaluation loss.\n"
            f"  got: {totals.rows} rows without an answer to learn\n"
            "  do: raise --context_length or --max_eval_step, mend the validation rows, or use "
            "--run_validation False"
        )
    names = loader.set_names
    loss_sums = [_CompensatedSum(batch_loss.world.device) for _ in names or ("all",)]
    with evaluation_mode(batch_loss.model), torch.no_grad():
        for row_ids in loader.own(plan):
            stop_together(stop, batch_loss.world)
            batch = loader.micro_batch(row_ids)
            if batch.lengths:
                at = loader.set_of(row_ids) if names else 0
                loss_sums[at].add(batch_loss.loss_sum(batch))
    whole_sums = sum_floats([loss_sum.item() for loss_sum in loss_sums], batch_loss.world)
    loss = sum(whole_sums) / totals.num_tokens
    return Evaluation(
        loss=loss,
        perplexity=perplexity(loss),
        num_tokens=totals.num_tokens,
        positions=totals.positions,
        rows=totals.rows,
        total_rows=loader.num_rows,
        seconds=time.perf_counter() - began,
        set_losses=_by_set(loader, plan, whole_sums) if names else {},
    )


def _by_set(loader: Loader, plan: list[RowIds], sums: list[float]) -> dict[str, float]:
    """Loss of each data set, of the sums of its token losses."""
    losses = {}
    for at, name in enumerate(loader.set_names):
        own = [row_ids for row_ids in plan if row_ids and loader.set_of(row_ids) == at]
        num_tokens = loader.totals(own).num_tokens
        if num_tokens:
            losses[name] = sums[at] / num_tokens
    return losses


def perplexity(loss: float) -> float:
    """exp(loss); inf where that overflows a double (above 709.78)."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Dropout off inside, and the mode of every module as it was after it."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


class _CompensatedSum:
    """Running float32 sum on the device, exact to about one rounding (Kahan 1965).

    float64 is missing on some accelerators, and reading each term would make the host wait for
    the device once a micro-batch.
    """

    def __init__(self, device: torch.device):
        self._total = torch.zeros((), dtype=torch.float32, device=device)
        self._lost = torch.zeros((), dtype=torch.float32, device=device)

    def add(self, term: torch.Tensor) -> None:
        term = term - self._lost
        total = self._total + term
        self._lost.copy_((total - self._total) - term)
        self._total.copy_(total)

    def item(self) -> float:
        return self._total.item()
