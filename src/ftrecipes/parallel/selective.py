"""Selective activation checkpointing: of a module's forward some operators' results are kept.

Products and attention take most of the time of a block, and the rest (norms, activations, gates,
casts) most of its memory: keeping the results of the first and computing the others again costs
little of either. Both contexts are those of torch.utils.checkpoint, which see only the operators
that may be kept: what else a recompute does (casts that autocast had cached in the forward, the
marks of a profiler) need not be the same, call by call.
"""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    create_selective_checkpoint_contexts,
)

from ftrecipes.config.errors import ModelError
from ftrecipes.parallel.op_counts import OpCounts
from ftrecipes.parallel.operators import KeptOps, Op, name_of
from ftrecipes.parallel.recompute import Contexts

_Shapes = tuple[tuple[int, ...], ...]


def keeping_ops(save_ops: Sequence[str] = (), counts: OpCounts | None = None) -> Contexts:
    """Contexts for `recompute`, in which products and attention are computed once.

    A product whose result has at least 16 times as many columns as it sums over is computed again
    all the same (the second matrix of LoRA, the up-projection of latent attention): each number
    that it would keep costs a few multiplications only. Attention that drops is computed again too,
    or what is drawn after it would be drawn otherwise.

    `save_ops` changes the list, see KeptOps; an operator that is named there is kept however wide
    its result. Results that are changed in place afterwards are computed again. Raises ConfigError.
    """
    kept = KeptOps(save_ops)

    def policy(
        context: SelectiveCheckpointContext, op: Op, *args: Any, **kwargs: Any
    ) -> CheckpointPolicy:
        if not kept.keeps(op, args, kwargs, context.op_output):
            return CheckpointPolicy.PREFER_RECOMPUTE
        if counts is not None:
            counts.keep(op, context.op_output)
        return CheckpointPolicy.MUST_SAVE

    def contexts() -> tuple[AbstractContextManager, AbstractContextManager]:
        calls: dict[Op, list[_Shapes]] = defaultdict(list)
        keeping, using = create_selective_checkpoint_contexts(policy)
        return _Forward(kept, keeping, calls), _Recompute(kept, using, calls, counts)

    return contexts


def counting(counts: OpCounts) -> Contexts:
    """Contexts for `recompute` that keep nothing, and count what runs again."""
    return lambda: (nullcontext(), _Counting(counts))


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


class _Forward(_Mode):
    """Shows torch's keeping mode the operators that may be kept, and notes what each was given."""

    def __init__(
        self, kept: KeptOps, keeping: TorchDispatchMode, calls: dict[Op, list[_Shapes]]
    ) -> None:
        super().__init__()
        self._kept = kept
        self._keeping = keeping
        self._calls = calls

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func not in self._kept:
            return func(*args, **(kwargs or {}))
        self._calls[func].append(_shapes(args))
        return self._keeping.__torch_dispatch__(func, types, args, kwargs)


class _Recompute(_Mode):
    """Asks torch's using mode for what was kept."""

    def __init__(
        self,
        kept: KeptOps,
        using: TorchDispatchMode,
        calls: dict[Op, list[_Shapes]],
        counts: OpCounts | None,
    ) -> None:
        super().__init__()
        self._kept = kept
        self._using = using
        self._calls = calls
        self._below = nullcontext() if counts is None else _Counting(counts)
        self._num_calls: dict[Op, int] = defaultdict(int)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        with self._below:  # sees what really runs
            if func not in self._kept:
                return func(*args, **(kwargs or {}))
            self._check(func, _shapes(args))
            try:
                return self._using.__torch_dispatch__(func, types, args, kwargs)
            except RuntimeError as error:
                # torch 2.13 has no type of its own for a result that is no longer what it was
                if "mutated" not in str(error):
                    raise
            return func(*args, **(kwargs or {}))

    def _check(self, op: Op, shapes: _Shapes) -> None:
        """Results are found by the number of the call: another order would be a wrong result."""
        calls, index = self._calls[op], self._num_calls[op]
        self._num_calls[op] += 1
        if index < len(calls) and calls[index] == shapes:
            return
        forward = calls[index] if index < len(calls) else f"called {len(calls)} times"
        raise ModelError(
            f"{name_of(op)} was not called alike in the two forwards of a checkpointed module.\n"
            f"  got: in call {index + 1} of the recompute tensors of {shapes}\n"
            f"  expected: as in the forward: {forward}\n"
            "  do: use --activation_checkpointing full, or "
            f"--activation_checkpointing.save_ops -{name_of(op)}"
        )


def _shapes(args: Sequence[Any]) -> _Shapes:
    return tuple(tuple(value.shape) for value in args if isinstance(value, Tensor))
