"""How often each operator's results were kept, and how often it ran again in a recompute."""

from collections import Counter
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from ftrecipes.parallel.operators import Op, is_view, name_of

_MIB = 2**20
_VIEWS = "views"


class OpCounts:
    """What recomputes have kept and computed since `clear`; counting changes no result.

    By name (`aten.mm`, `aten.add.Tensor`). `kept` and `kept_bytes` are sums over all forwards,
    `recomputed` over all recomputes. A result that was kept and then changed in place is in both.
    """

    def __init__(self) -> None:
        self.kept: Counter[str] = Counter()
        self.kept_bytes: Counter[str] = Counter()
        self.recomputed: Counter[str] = Counter()
        self.num_views = 0  # that recomputes took: they take no time, and are not in the above

    def clear(self) -> None:
        """Begin anew."""
        for counter in (self.kept, self.kept_bytes, self.recomputed):
            counter.clear()
        self.num_views = 0

    def keep(self, op: Op, results: Any) -> None:
        """The results of one call are kept."""
        tensors = [leaf for leaf in tree_leaves(results) if isinstance(leaf, Tensor)]
        self.kept[name_of(op)] += 1
        self.kept_bytes[name_of(op)] += sum(tensor.nbytes for tensor in tensors)

    def recompute(self, op: Op) -> None:
        """It ran in a recompute."""
        if is_view(op):
            self.num_views += 1
        else:
            self.recomputed[name_of(op)] += 1

    def lines(self) -> list[str]:
        """A table for the log: the operator that ran again most often first, then by name."""
        names = sorted({*self.kept, *self.recomputed}, key=lambda n: (-self.recomputed[n], n))
        width = max(map(len, [*names, _VIEWS]))
        rows = [f"{'':{width}}  computed again      kept    kept MiB"]
        for name in names:
            size = self.kept_bytes[name] / _MIB
            rows.append(
                f"{name:{width}}  {self.recomputed[name]:14}  {self.kept[name]:8}  {size:10.2f}"
            )
        return [*rows, f"{_VIEWS:{width}}  {self.num_views:14}  {0:8}  {0:10.2f}"]
