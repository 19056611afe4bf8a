"""Which part of a tensor a process keeps: that of torch's FSDP2, in one place."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Share:
    """Part `index` of `count` equal parts along the first dimension; the last ones may be smaller,
    or empty (as torch.chunk cuts)."""

    index: int = 0
    count: int = 1

    def rows(self, length: int) -> range:
        """Indices along a first dimension of `length` that this part holds."""
        step = -(-length // self.count)
        return range(min(self.index * step, length), min((self.index + 1) * step, length))

    def all_rows(self, length: int) -> list[range]:
        """`rows` of every part."""
        return [Share(index, self.count).rows(length) for index in range(self.count)]
