"""Sharding that saves nothing is an error; what one process says; OneProcess does nothing."""

from dataclasses import replace

import pytest
import torch

from ftrecipes.config.errors import ModelError
from ftrecipes.parallel.engine import OneProcess
from ftrecipes.parallel.wrap import lora_aware_wrap_policy
from ftrecipes.parallel.wrap_report import WrapReport, check_saved, wrap_report
from tests import tiny_models


@pytest.fixture(scope="module")
def report() -> WrapReport:
    """Of one process, which keeps everything."""
    model = tiny_models.build("llama")
    return wrap_report(model, lora_aware_wrap_policy(model), OneProcess())


def test_one_process_keeps_everything(report):
    model = tiny_models.build("llama")
    size = sum(p.numel() for p in model.parameters())
    assert report.parameter_bytes == 4 * size
    assert report.measured_bytes == report.expected_bytes == 4 * size + report.buffer_bytes
    assert sum(row.parameters * count for row, count in report.rows) == size
    assert report.lines()[0].startswith("2 x block LlamaDecoderLayer: 7,744 parameters each, ")
    check_saved(report)


def test_parameters_that_no_rank_shares(report):
    with pytest.raises(ModelError, match="over 4 ranks") as caught:
        check_saved(replace(report, ranks=4))
    largest = "lm_head.weight (0.01 MiB)"
    assert largest in str(caught.value)


def test_one_large_parameter_that_every_rank_keeps(report):
    kept = {name: (size // 2, size) for name, (_, size) in report.kept.items()}
    check_saved(replace(report, ranks=2, kept=kept))
    kept["lm_head.weight"] = report.kept["lm_head.weight"]
    with pytest.raises(ModelError, match=r"whole on a rank are lm_head.weight \(0.01 MiB\)\n"):
        check_saved(replace(report, ranks=2, kept=kept))


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.0.mlp.up_proj.weight"])
def test_small_parameters_may_be_whole(report, name):
    """Norms with fewer rows than ranks, say; or an eighth of what a rank keeps, as the positions
    of a small part for images, which are one row (GOT-OCR2)."""
    kept = {name: (size // 2, size) for name, (_, size) in report.kept.items()}
    kept[name] = report.kept[name]
    check_saved(replace(report, ranks=2, kept=kept))


def test_one_process_only_calls():
    engine, tensor = OneProcess(), torch.ones(2)
    assert engine.run(max, 1, 2) == engine.run_head(max, 1, 2) == 2
    assert engine.local(tensor) is engine.gather(tensor) is engine.sum(tensor) is tensor
    assert engine.share.rows(5) == range(5)
