"""Quantize a rank's part of a weight so that all parts together are what bitsandbytes makes of it.

bitsandbytes quantizes blocks of consecutive weights one by one, and with double quantization the
scales of all blocks together (https://arxiv.org/abs/2305.14314, section 3). So a rank quantizes the
blocks that its part touches, keeps the bytes of its part, and the scales are put together.
"""

from collections.abc import Callable, Sequence

import torch
from bitsandbytes.functional import (
    QuantState,
    get_4bit_type,
    quantize_4bit,
    quantize_blockwise,
)
from torch import Tensor

from ftrecipes.model.packed import Packing
from ftrecipes.model.ranges import own_blocks, widened
from ftrecipes.runtime.shares import Share

# Weights that are quantized at a time, a multiple of every block size. On CPUs bitsandbytes 0.50
# needs some 30 bytes for each; elsewhere no more than they are, but each call takes its time.
_ON_CPU, _ELSEWHERE = 2**16, 2**24
_NESTED_BLOCK = 256  # scales that share a scale of their own, in bitsandbytes


def wide_spans(packing: Packing, share: Share) -> list[range]:
    """Elements of the weight that each part of `share` must see: whole quantization blocks."""
    spans = _spans(packing, share)
    return [widened(span, packing.blocksize, packing.shape.numel()) for span in spans]


def quantize_part(
    values: Tensor,
    packing: Packing,
    share: Share,
    *,
    dtype: torch.dtype,
    device: torch.device,
    gather: Callable[[Tensor, Sequence[int]], Tensor],
) -> tuple[Tensor, QuantState]:
    """(packed rows of this part [rows, 1] in the storage dtype, statistics of the whole weight).

    `values`: the elements [n] of the weight in this part's span of `wide_spans`, as stored; they
    are rounded to `dtype` first, which becomes that of the state. `gather` puts the 1-D parts of
    all ranks of the share together. Called by all of them.
    """
    block, size = packing.blocksize, packing.storage.itemsize
    spans = _spans(packing, share)
    span = spans[share.index]
    wide = widened(span, block, packing.shape.numel())
    out = torch.empty(len(share.rows(packing.rows)) * size, dtype=torch.uint8, device=device)
    scales = [torch.empty(0, device=device)]
    step = _ON_CPU if device.type == "cpu" else _ELSEWHERE
    for start in range(wide.start, wide.stop, step):
        piece = range(start, min(start + step, wide.stop))
        part = values[start - wide.start : piece.stop - wide.start].to(device=device, dtype=dtype)
        packed, state = quantize_4bit(part, blocksize=block, quant_type=packing.quant_type)
        scales.append(state.absmax)
        _copy_bytes(packed.view(-1), piece, out=out, span=span)
    owned = [own_blocks(other, block) for other in spans]
    # a block that begins in the part before belongs to that one; it is the first here
    seen = torch.cat(scales)
    mine = seen[len(seen) - len(owned[share.index]) :]
    absmax = gather(mine, [len(blocks) for blocks in owned])
    return out.view(packing.storage).unsqueeze(1), _state(absmax, packing, dtype)


def _spans(packing: Packing, share: Share) -> list[range]:
    """Elements of the weight in the packed rows of each part."""
    width = 2 * packing.storage.itemsize  # two weights in a byte
    total = packing.shape.numel()
    return [
        range(min(rows.start * width, total), min(rows.stop * width, total))
        for rows in share.all_rows(packing.rows)
    ]


def _copy_bytes(packed: Tensor, piece: range, *, out: Tensor, span: range) -> None:
    """Of the bytes of the elements `piece` copy into `out` those of `span`; it has all of these."""
    start, stop = max(piece.start, span.start), min(piece.stop, span.stop)
    if start >= stop:
        return
    num_bytes = (stop - start + 1) // 2
    at, to = (start - piece.start) // 2, (start - span.start) // 2
    out[to : to + num_bytes] = packed[at : at + num_bytes]


def _state(absmax: Tensor, packing: Packing, dtype: torch.dtype) -> QuantState:
    """The state of a weight with the scales `absmax`; as quantize_4bit of bitsandbytes 0.50."""
    offset = nested = None
    if packing.double_quant:
        offset = absmax.mean()
        absmax, nested = quantize_blockwise(absmax - offset, blocksize=_NESTED_BLOCK)
    return QuantState(
        absmax=absmax,
        shape=packing.shape,
        dtype=dtype,
        blocksize=packing.blocksize,
        code=get_4bit_type(packing.quant_type, device=absmax.device),
        quant_type=packing.quant_type,
        offset=offset,
        state2=nested,
    )
