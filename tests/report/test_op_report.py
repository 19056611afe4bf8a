"""The table of operators after the first step: what that step has counted, once."""

import torch
from torch import nn

from ftrecipes.parallel.op_counts import OpCounts
from ftrecipes.parallel.recompute import op_counts, recompute
from ftrecipes.parallel.selective import counting
from ftrecipes.report.op_report import OpReport


def counted_model(counts: OpCounts) -> nn.Module:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Tanh()))
    recompute(model, [model[0]], contexts=counting(counts), counts=counts)
    return model


def step(model: nn.Module, forwards: int) -> None:
    for _ in range(forwards):
        model(torch.ones(2, 4)).sum().backward()


def test_the_first_step_is_told_and_no_other(caplog):
    """What was counted before it, while the model was tried, is left out."""
    caplog.set_level("INFO", logger="ftrecipes")
    counts = OpCounts()
    model = counted_model(counts)
    assert op_counts(model) is counts
    report = OpReport(counts)
    step(model, 1)
    with report.watch(1, print):
        step(model, 3)
    lines = [message.split() for message in caplog.messages]
    assert ["aten.addmm", "3", "0", "0.00"] in lines
    assert ["aten.tanh", "3", "0", "0.00"] in lines
    caplog.clear()
    with report.watch(2, print):
        step(model, 1)
    report.close()
    assert caplog.messages == []


def test_a_model_that_counts_nothing():
    assert op_counts(nn.Sequential(nn.Linear(2, 2))) is None
