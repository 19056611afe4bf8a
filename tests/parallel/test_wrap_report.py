"""Sharding that saves nothing is an error; what one process says; OneProcess does nothing."""

import pytest
import torch

from ftrecipes.config.errors import ModelError
from ftrecipes.parallel.engine import OneProcess
from ftrecipes.parallel.wrap import lora_aware_wrap_policy
from ftrecipes.parallel.wrap_report import WrapReport, check_saved, kept_bytes, wrap_report
from tests import tiny_models


@pytest.fixture(scope="module")
def report() -> WrapReport:
    """Of one process, which keeps everything."""
    model = tiny_models.build("llama")
    return wrap_report(model, lora_aware_wrap_policy(model), OneProcess())


@pytest.fixture(scope="module")
def kept() -> dict[str, tuple[int, int]]:
    """What one process keeps, and the size, of each parameter."""
    return kept_bytes(tiny_models.build("llama"), ranks=1)


def halves(kept: dict[str, tuple[int, int]], *, but: str = "") -> dict[str, tuple[int, int]]:
    """What each of two keeps, when both keep one parameter whole."""
    return {name: (size if name == but else size // 2, size) for name, (_, size) in kept.items()}


def test_one_process_keeps_everything(report, kept):
    model = tiny_models.build("llama")
    size = sum(p.numel() for p in model.parameters())
    assert report.parameter_bytes == 4 * size
    assert report.measured_bytes == report.expected_bytes == 4 * size + report.buffer_bytes
    assert sum(row.parameters * count for row, count in report.rows) == size
    assert report.lines()[0].startswith("2 x block LlamaDecoderLayer: 7,744 parameters each, ")
    check_saved(kept, ranks=1)


def test_parameters_that_no_rank_shares(kept):
    with pytest.raises(ModelError, match="over 4 ranks") as caught:
        check_saved(kept, ranks=4)
    largest = "lm_head.weight (0.01 MiB)"
    assert largest in str(caught.value)


def test_one_large_parameter_that_every_rank_keeps(kept):
    check_saved(halves(kept), ranks=2)
    with pytest.raises(ModelError, match=r"whole on a rank are lm_head.weight \(0.01 MiB\)\n"):
        check_saved(halves(kept, but="lm_head.weight"), ranks=2)


@pytest.mark.parametrize("name", ["model.norm.weight", "model.layers.0.mlp.up_proj.weight"])
def test_small_parameters_may_be_whole(kept, name):
    """Norms with fewer rows than ranks, say; or an eighth of what a rank keeps, as the positions
    of a small part for images, which are one row (GOT-OCR2)."""
    check_saved(halves(kept, but=name), ranks=2)


def test_one_process_only_calls():
    engine, tensor = OneProcess(), torch.ones(2)
    assert engine.run(max, 1, 2) == engine.run_head(max, 1, 2) == 2
    assert engine.local(tensor) is engine.gather(tensor) is engine.sum(tensor) is tensor
    assert engine.share.rows(5) == range(5)
