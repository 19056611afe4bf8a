"""Which numbers of a tensor a rank reads: flat ranges of elements, in row-major order.

A rank keeps rows along the first dimension of what is stored. For packed weights those are ranges
of bytes, and begin and end anywhere in a row, or in a quantization block, of the weight itself.
"""

from collections.abc import Sequence
from math import prod
from typing import Protocol

from torch import Tensor


class Sliceable(Protocol):
    """A tensor, or one in a file that is read where it is sliced (safetensors' get_slice)."""

    def __getitem__(self, index) -> Tensor: ...


def elements(rows: range, shape: Sequence[int]) -> range:
    """The elements in `rows` of a tensor of `shape`; a tensor without dimensions is one row."""
    width = prod(shape[1:])
    return range(rows.start * width, rows.stop * width)


def widened(span: range, block: int, total: int) -> range:
    """`span` with the rest of the blocks that it begins and ends in, of a tensor of `total`."""
    if not span:
        return range(0)
    return range(span.start - span.start % block, min(-(-span.stop // block) * block, total))


def own_blocks(span: range, block: int) -> range:
    """Numbers of the blocks that begin in `span`: of adjoining spans each has its own."""
    return range(-(-span.start // block), -(-span.stop // block))


def read(source: Sliceable, shape: Sequence[int], span: range, *, transposed: bool) -> Tensor:
    """The elements `span` of a tensor of `shape`, [len(span)], as stored.

    `transposed`: `source` holds the matrix the other way round. No more is read than the rows that
    the span touches, and nothing is copied that lies in one piece.
    """
    if not shape:
        return source[...].reshape(1)
    width = prod(shape[1:])
    first = span.start // width if width else 0
    last = -(-span.stop // width) if width else 0
    rows = source[:, first:last].T if transposed else source[first:last]
    return rows.reshape(-1)[span.start - first * width : span.stop - first * width]
