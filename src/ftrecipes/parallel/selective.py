"""Selective activation checkpointing: of a module's forward some operators' results are kept.

Products and attention take most of the time of a block, and the rest (norms, activations, gates,
casts) most of its memory: keeping the results of the first and computing the others again costs
little of either.

torch.utils.checkpoint.create_selective_checkpoint_contexts has the same idea, and its contexts are
what these take the place of. Those of torch 2.13 give wrong gradients, without a word, where a
linear layer's result is changed in place: it reaches a model through `aten._unsafe_view`, which
hides changes from what torch looks at (`_version`). And they fail where a recompute calls other
operators that are not kept: casts that autocast had at hand, the marks of FSDP for the profiler.
"""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ftrecipes.config.errors import ModelError
from ftrecipes.parallel.op_counts import OpCounts
from ftrecipes.parallel.operators import KeptOps, Op, changed_by, name_of
from ftrecipes.parallel.recompute import Contexts

_Shapes = tuple[tuple[int, ...], ...]
_OURS = 2  # references to the memory of a tensor that nobody else has: its own, and the asker's


def keeping_ops(save_ops: Sequence[str] = (), counts: OpCounts | None = None) -> Contexts:
    """Contexts for `recompute`, in which products and attention are computed once.

    A product whose result has at least 16 times as many columns as it sums over is computed again
    all the same (the second matrix of LoRA, the up-projection of latent attention): each number
    that it would keep costs a few multiplications only. Attention that drops is computed again too,
    or what is drawn after it would be drawn otherwise.

    `save_ops` changes the list, see KeptOps; an operator that is named there is kept however wide
    its result. A result that the module changes in place is copied first; one that leaves the
    module, where others may change it, is not kept. One that is changed behind the back of torch
    and autograd (through numpy, say) gives wrong gradients. Raises ConfigError.
    """
    kept = KeptOps(save_ops)

    def contexts() -> tuple[AbstractContextManager, AbstractContextManager]:
        calls: dict[Op, list[_Call]] = defaultdict(list)
        return _Forward(kept, calls, counts), _Recompute(kept, calls, counts)

    return contexts


def counting(counts: OpCounts) -> Contexts:
    """Contexts for `recompute` that keep nothing, and count what runs again."""
    return lambda: (nullcontext(), _Counting(counts))


@dataclass
class _Call:
    """One call of an operator: what it was given, and what it gave unless nothing is kept.

    The results lie apart from the graph they were computed in, which would hold them and be held.
    """

    shapes: _Shapes
    results: Any = None
    versions: list[tuple[Tensor, int]] = field(default_factory=list)

    def keep(self, results: Any) -> None:
        """What the operator gave."""
        self.results = tree_map_only(Tensor, torch.detach, results)
        self.watch(results)

    def watch(self, given: Any) -> None:
        """These tensors, which the module has, are the results or views of them."""
        leaves = (leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor))
        self.versions += [(tensor, tensor._version) for tensor in leaves]

    def settle(self) -> None:
        """The module is through: nothing is kept of what others have changed, or may yet change."""
        is_changed = any(tensor._version != version for tensor, version in self.versions)
        self.versions.clear()
        if is_changed or any(map(_others_have, self.tensors())):
            self.results = None

    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in tree_leaves(self.results) if isinstance(leaf, Tensor)]

    def copy(self) -> None:
        """Before others change the results in place."""
        self.results = tree_map_only(Tensor, torch.clone, self.results)
        self.versions.clear()

    def take(self) -> Any:
        """The results, once: whoever has them may change them."""
        results, self.results = self.results, None
        return results


class _Mode(TorchDispatchMode):
    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """As torch's own: flex attention compiles itself within."""
        return True


class _Counting(_Mode):
    def __init__(self, counts: OpCounts) -> None:
        super().__init__()
        self._counts = counts

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._counts.recompute(func)
        return func(*args, **(kwargs or {}))


class _Keeping(_Mode):
    """One of the two contexts of a checkpoint, which share what was called, and what came of it."""

    def __init__(
        self, kept: KeptOps, calls: dict[Op, list[_Call]], counts: OpCounts | None
    ) -> None:
        super().__init__()
        self._kept = kept
        self._calls = calls
        self._counts = counts


class _Forward(_Keeping):
    """Keeps results, for as long as nobody changes them.

    A change by an operator is seen before it is made. One by a kernel that torch does not know is
    seen when all is over, where autograd was told of it: by `_version`, which is the same for all
    views of a result but for those of `aten._unsafe_view`.
    """

    def __init__(
        self, kept: KeptOps, calls: dict[Op, list[_Call]], counts: OpCounts | None
    ) -> None:
        super().__init__(kept, calls, counts)
        self._holders: dict[int, _Call] = {}  # where a kept result lies -> whose it is

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for tensor in changed_by(func, args, kwargs):
            holder = self._holders.pop(_place(tensor), None)
            if holder is not None:
                holder.copy()
        results = func(*args, **kwargs)
        if func in self._kept:
            call = _Call(_shapes(args))
            self._calls[func].append(call)
            if self._kept.keeps(func, args, kwargs, results):
                call.keep(results)
                for tensor in call.tensors():
                    self._holders[_place(tensor)] = call
        elif func is torch.ops.aten._unsafe_view.default and _place(results) in self._holders:
            self._holders[_place(results)].watch(results)
        return results

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._holders.clear()
        for op, calls in self._calls.items():
            for call in calls:
                call.settle()
                if self._counts is not None and call.results is not None:
                    self._counts.keep(op, call.results)


class _Recompute(_Keeping):
    """Gives kept results in the order of their calls, and computes the rest."""

    def __init__(
        self, kept: KeptOps, calls: dict[Op, list[_Call]], counts: OpCounts | None
    ) -> None:
        super().__init__(kept, calls, counts)
        self._below = nullcontext() if counts is None else _Counting(counts)
        self._num_calls: dict[Op, int] = defaultdict(int)

    def __enter__(self) -> Self:
        self._num_calls.clear()  # a graph that is retained is computed again more than once
        return super().__enter__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in self._kept:
            results = self._next(func, _shapes(args)).take()
            if results is not None:
                return results
        with self._below:
            return func(*args, **(kwargs or {}))

    def _next(self, op: Op, shapes: _Shapes) -> _Call:
        """Calls are found by number: in another order they would be answered wrongly."""
        calls, index = self._calls[op], self._num_calls[op]
        self._num_calls[op] += 1
        if index < len(calls) and calls[index].shapes == shapes:
            return calls[index]
        forward = calls[index].shapes if index < len(calls) else f"{len(calls)} calls"
        raise ModelError(
            f"{name_of(op)} was not called alike in the two forwards of a checkpointed module.\n"
            f"  got: in call {index + 1} of the recompute tensors of {shapes}\n"
            f"  expected: as in the forward: {forward}\n"
            f"  do: use --activation_checkpointing full, or {self._kept.how_to_drop(op)}"
        )


def _shapes(args: Sequence[Any]) -> _Shapes:
    return tuple(tuple(value.shape) for value in args if isinstance(value, Tensor))


def _place(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _others_have(tensor: Tensor) -> bool:
    """Whether the memory of a kept result outlives the forward elsewhere too."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) > _OURS
