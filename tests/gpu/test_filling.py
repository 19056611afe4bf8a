"""Weights that are packed on a CUDA device, in parts and whole, beside transformers' own load."""

import pytest
import torch
from bitsandbytes.functional import quantize_4bit

from ftrecipes.model.fill import fill
from ftrecipes.model.load import load_model
from ftrecipes.model.packed import Packing
from ftrecipes.model.ranges import read
from ftrecipes.model.skeleton import build_skeleton
from ftrecipes.model.slices import quantize_part, wide_spans
from ftrecipes.runtime.shares import Share
from tests import tiny_models
from tests.model.filling import BFLOAT16, assert_bytes, assert_same, put_whole, settings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CUDA = torch.device("cuda")
NF4 = {"quant_type": "nf4", "use_double_quant": True}


@pytest.mark.parametrize("family", ["llama", "gpt2", "mixtral"])
def test_weights_read_by_range_are_those_of_transformers(family, tmp_path):
    """4-bit weights packed on the device while they are read: as transformers packs them there."""
    source, config = settings(tiny_models.save_folder(family, tmp_path), NF4)
    model = build_skeleton(source, config, BFLOAT16)
    fill(
        model,
        source,
        config,
        BFLOAT16,
        device=CUDA,
        put=put_whole(model),
        share=Share(),
        group=None,
        beat=lambda: None,
    )
    assert assert_same(model, load_model(source, config, BFLOAT16, CUDA)) > 0


@pytest.mark.parametrize("storage", [torch.uint8, torch.bfloat16], ids=str)
def test_parts_packed_on_the_device_are_the_whole(storage):
    """A weight packed by three ranks on the device, blocks over their borders: as in one go."""
    weight = torch.randn(301, 1040, dtype=torch.bfloat16)
    whole, state = quantize_4bit(weight.to(CUDA), quant_type="nf4", quant_storage=storage)
    packing = Packing(shape=weight.shape, quant_type="nf4", double_quant=False, storage=storage)
    parts, scales = [], []
    for index in range(3):
        share = Share(index, 3)
        span = wide_spans(packing, share)[index]
        part, own = quantize_part(
            read(weight, weight.shape, span, transposed=False),
            packing,
            share,
            dtype=torch.bfloat16,
            device=CUDA,
            gather=lambda scale, lengths: scale,
        )
        parts.append(part)
        scales.append(own.absmax)
    assert_bytes(torch.cat(parts), whole, "packed")
    assert_bytes(torch.cat(scales), state.absmax, "scales")
