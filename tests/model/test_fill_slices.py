"""Quantizing in parts: together what bitsandbytes makes of the whole weight, byte by byte."""

from itertools import product
from math import prod

import pytest
import torch
from bitsandbytes.functional import quantize_4bit

from ftrecipes.model import slices
from ftrecipes.model.packed import Packing
from ftrecipes.model.ranges import elements, own_blocks, read, widened
from ftrecipes.model.slices import quantize_part, wide_spans
from ftrecipes.runtime.shares import Share
from tests.model.filling import CPU, assert_bytes, assert_same_state

# rows that do not divide, blocks that straddle rows and parts, a tail, less than a block, experts
SHAPES = [(64, 64), (7, 48), (33, 70), (1, 16), (5, 64, 96), (300, 128), (3, 40)]
STORAGES = [torch.uint8, torch.bfloat16, torch.float32]
# bitsandbytes packs in a storage only what fills its last number
PACKABLE = [(s, t) for s, t in product(SHAPES, STORAGES) if prod(s) // 2 % t.itemsize == 0]


def quantized_in_parts(weight, packing, *, count, dtype):
    """(packed rows of all parts, the state that each has)."""
    scales, parts = [], []

    def keep(part, lengths):
        scales.append(part)
        return torch.ones(sum(lengths))  # overwritten below, when all are known

    def quantize(index, gather):
        share = Share(index, count)
        span = wide_spans(packing, share)[index]
        values = read(weight, weight.shape, span, transposed=False)
        return quantize_part(values, packing, share, dtype=dtype, device=CPU, gather=gather)

    for index in range(count):
        quantize(index, keep)
    everything = torch.cat(scales)
    for index in range(count):
        parts.append(quantize(index, lambda part, lengths: everything))
    return torch.cat([local for local, _ in parts]), [state for _, state in parts]


@pytest.mark.parametrize(("kind", "double"), list(product(["nf4", "fp4"], [True, False])))
@pytest.mark.parametrize(("shape", "storage"), PACKABLE, ids=str)
def test_parts_are_the_whole(shape, kind, double, storage, monkeypatch):
    monkeypatch.setattr(slices, "_ON_CPU", 4096)  # several pieces a part
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    for dtype, count in product([torch.bfloat16, torch.float32, torch.float16], [1, 2, 3, 4, 7]):
        expected, state = quantize_4bit(
            weight.to(dtype), quant_type=kind, compress_statistics=double, quant_storage=storage
        )
        packing = Packing(shape=weight.shape, quant_type=kind, double_quant=double, storage=storage)
        got, states = quantized_in_parts(weight, packing, count=count, dtype=dtype)
        assert got.shape == expected.shape
        assert_bytes(got, expected, f"{dtype} in {count}")
        for found in states:
            assert_same_state(found, state)


def test_every_block_has_one_owner_and_is_seen_by_it():
    for total, block, count, width in product([1000, 64, 4097], [64], [1, 2, 3, 5], [2, 8]):
        spans = [
            range(min(rows.start * width, total), min(rows.stop * width, total))
            for rows in Share(0, count).all_rows(-(-total // width))
        ]
        owned = [own_blocks(span, block) for span in spans]
        assert [number for blocks in owned for number in blocks] == list(range(-(-total // block)))
        for span, blocks in zip(spans, owned, strict=True):
            wide = widened(span, block, total)
            assert all(wide.start <= number * block < wide.stop for number in blocks)
            assert wide.start % block == 0
            assert len(wide) < len(span) + 2 * block


@pytest.mark.parametrize("shape", [(6, 10), (4, 3, 5), (7,), (), (0, 4)], ids=str)
def test_a_range_is_read_as_it_lies_in_memory(shape):
    tensor = torch.randn(shape)
    flat = tensor.reshape(-1)
    for start in range(len(flat) + 1):
        for stop in range(start, len(flat) + 1) if shape else [1]:
            span = range(start, stop) if shape else range(1)
            assert read(tensor, shape, span, transposed=False).equal(flat[span.start : span.stop])
    if len(shape) == 2:
        turned = tensor.T.contiguous()
        for rows in (range(shape[0]), range(2, 5)):
            span = elements(rows, shape)
            got = read(turned, shape, span, transposed=True)
            assert got.equal(flat[span.start : span.stop])
