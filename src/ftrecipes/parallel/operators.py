"""Torch's operators: which ones' results a selective recompute keeps, and their names.

An operator is written `namespace.name`, with an overload behind where it matters: `aten.gelu`,
`aten.add.Tensor`.
"""

from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._pytree import tree_leaves

from ftrecipes.config.errors import ConfigError

Op = OpOverload | HigherOrderOperator

# Products -> which argument is the left factor, whose last dimension they sum over. bitsandbytes,
# ours (model/quantized_ops.py) and those of transformers are there once they are imported.
_PRODUCTS = {
    "aten.mm": 0,
    "aten.addmm": 1,
    "aten._addmm_activation": 1,
    "aten.bmm": 0,
    "aten.baddbmm": 1,
    "aten.linear": 0,
    "aten._grouped_mm": 0,
    "aten._int_mm": 0,
    "aten._scaled_mm": 0,
    "aten._scaled_mm_v2": 0,
    "aten._scaled_grouped_mm": 0,
    "aten._scaled_grouped_mm_v2": 0,
    "transformers.grouped_mm_fallback": 0,
    "bitsandbytes.gemm_4bit": 0,
    "bitsandbytes.gemv_4bit": 0,
    "bitsandbytes.int8_linear_matmul": 0,
    "bitsandbytes.int8_scaled_mm": 0,
    "bitsandbytes.int8_mixed_scaled_mm": 0,
    "ftrecipes.linear_4bit": 0,
    "ftrecipes.linear_8bit": 0,
}
# Patterns: flash-attn and the kernels of the hub register theirs under a namespace each.
_OTHERS = (
    "aten.convolution",
    "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_flash_attention_for_cpu",
    "aten._scaled_dot_product_efficient_attention",
    "aten._scaled_dot_product_cudnn_attention",
    "aten._scaled_dot_product_fused_attention_overrideable",
    "aten._scaled_dot_product_attention_math_for_mps",
    "aten._flash_attention_forward",
    "aten._efficient_attention_forward",
    "aten._cudnn_attention_forward",
    "higher_order.flex_attention",
    "torch_attn._varlen_attn",
    "transformers_msa.sparse_atten",
    "*flash_attn*._flash_attn_forward",
    "*flash_attn*._flash_attn_varlen_forward",
)
_WIDE = 16  # times as many columns as it sums over
_DROPOUT = ("dropout_p", "p_dropout")  # what operators call the probability they drop with
_BACKENDS = ("CPU", "CUDA", "XPU", "MPS")
_NEAREST = 3
_FLAG = "--activation_checkpointing.save_ops"


def name_of(op: Op) -> str:
    """As `aten.mm` or `aten.add.Tensor`."""
    if isinstance(op, HigherOrderOperator):
        return f"higher_order.{op.name()}"
    return str(op).removesuffix(".default")


@cache
def is_view(op: Op) -> bool:
    """Whether it computes nothing: its result is another view of what it was given."""
    return isinstance(op, OpOverload) and (op.is_view or name_of(op) == "aten._unsafe_view")


@cache
def _written(op: Op) -> tuple[tuple[int, str], ...]:
    if isinstance(op, HigherOrderOperator):
        return ()
    arguments = enumerate(op._schema.arguments)
    return tuple((i, a.name) for i, a in arguments if a.alias_info and a.alias_info.is_write)


def changed_by(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that a call changes in place."""
    given = [args[i] if i < len(args) else kwargs.get(name) for i, name in _written(op)]
    return [leaf for leaf in tree_leaves(given) if isinstance(leaf, Tensor)] if given else []


class KeptOps:
    """The operators whose results are kept: products and attention, changed by `save_ops`.

    `aten.gelu` or `aten::gelu` adds an operator (all of its overloads), `aten.gelu.default` one
    overload, and a minus in front takes it out. Raises ConfigError for names that would do nothing,
    and for operators that must not be kept: views, changes in place, and random numbers, behind
    which others would be drawn the second time.
    """

    def __init__(self, save_ops: Sequence[str] = ()) -> None:
        added = [name for name in save_ops if not name.startswith("-")]
        taken = [name.removeprefix("-") for name in save_ops if name.startswith("-")]
        self._named = frozenset(op for name in added for op in _to_keep(name))
        self._taken = frozenset(op for name in taken for op in _kept_by_default(name))

    def __contains__(self, op: Op) -> bool:
        return op in self._named or (_by_default(op) and op not in self._taken)

    def keeps(self, op: Op, args: Sequence[Any], kwargs: dict[str, Any], results: Any) -> bool:
        """Whether one call's results are kept; the operator is one of these."""
        if _drops(op, args, kwargs):
            return False
        return op in self._named or not _is_wide(op, args, results)

    def how_to_drop(self, op: Op) -> str:
        """What to do so that its results are kept no longer; for a message."""
        name = name_of(op)
        return f"{_FLAG}=-{name}" if _by_default(op) else f"leave {name} out of {_FLAG}"


def _is_wide(op: Op, args: Sequence[Any], results: Any) -> bool:
    """Whether it is a product of many columns, each summed over little."""
    place = _PRODUCTS.get(_without_overload(op))
    if place is None or not isinstance(results, Tensor) or not results.dim():
        return False
    return results.shape[-1] >= _WIDE * args[place].shape[-1]


@cache
def _by_default(op: Op) -> bool:
    name = _without_overload(op)
    known = name in _PRODUCTS or any(fnmatchcase(name, pattern) for pattern in _OTHERS)
    return known and not _reason_against(op)


@cache
def _without_overload(op: Op) -> str:
    return name_of(op) if isinstance(op, HigherOrderOperator) else str(op.overloadpacket)


@cache
def _place_of_dropout(op: Op) -> tuple[int, str] | None:
    if isinstance(op, HigherOrderOperator):
        return None
    names = [argument.name for argument in op._schema.arguments]
    return next(((i, name) for i, name in enumerate(names) if name in _DROPOUT), None)


def _drops(op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether this call draws random numbers."""
    place = _place_of_dropout(op)
    if place is None:
        return False
    index, name = place
    return (args[index] if index < len(args) else kwargs.get(name, 0.0)) > 0.0


def _reason_against(op: Op) -> str:
    """Why the results of an operator can not be kept; empty where they can."""
    if isinstance(op, HigherOrderOperator):
        return ""
    if is_view(op):
        return "its result is a view, which takes neither time nor memory"
    if op._schema.is_mutable:
        return "it changes what it is given, which would not happen the second time"
    seeded = torch.Tag.nondeterministic_seeded in op.tags
    if seeded and _place_of_dropout(op) is None:
        return "it draws random numbers: those drawn after it would be others the second time"
    composite = op.has_kernel_for_dispatch_key("CompositeImplicitAutograd")
    if composite and not any(op.has_kernel_for_dispatch_key(key) for key in _BACKENDS):
        return "it is made of other operators, and those are what is kept"
    return ""


def _to_keep(name: str) -> list[Op]:
    ops = _find(name)
    good = [op for op in ops if not _reason_against(op)]
    if not good:
        raise ConfigError(
            f"{_FLAG}: the results of {name} can not be kept.\n  got: {_reason_against(ops[0])}\n"
            "  expected: an operator that computes a new tensor, such as aten.gelu"
        )
    return good


def _kept_by_default(name: str) -> list[Op]:
    kept = [op for op in _find(name) if _by_default(op)]
    if not kept:
        raise ConfigError(
            f"{_FLAG}: -{name} would have no effect: its results are not kept anyway.\n"
            f"  expected: one of {', '.join(_PRODUCTS)}, or an operator of attention"
        )
    return kept


def _find(name: str) -> list[Op]:
    """The overloads of that name that there are now. Raises ConfigError when there is none."""
    asked = name.replace("::", ".")
    if asked == "higher_order.flex_attention":
        return [torch.ops.higher_order.flex_attention]
    overloads: dict[str, list[str]] = {}  # aten.add -> Tensor, Scalar, ...
    for full in torch._C._dispatch_get_all_op_names():
        space, _, rest = full.partition("::")
        own, _, overload = rest.partition(".")
        overloads.setdefault(f"{space}.{own}", []).append(overload or "default")
    packet, _, overload = (asked, "", "") if asked in overloads else asked.rpartition(".")
    wanted = [overload] if overload else sorted(overloads[packet], key=lambda n: n != "default")
    if not set(wanted) <= set(overloads.get(packet, ())):
        alike = [f"{packet}.{each}" for each in overloads.get(packet, ())]
        raise ConfigError(
            f"{_FLAG}: there is no operator {name}.\n"
            "  expected: namespace.name as torch knows it, such as aten.gelu\n"
            f"  nearest: {', '.join(_nearest(asked, alike or list(overloads)))}"
        )
    space, _, own = packet.partition(".")
    found = getattr(getattr(torch.ops, space), own)
    return [getattr(found, each) for each in wanted]


def _nearest(asked: str, known: Sequence[str]) -> list[str]:
    """Names with the same last part first: `torch.gelu` is `aten.gelu`."""
    last = asked.rpartition(".")[2]
    same = sorted(name for name in known if name.rpartition(".")[2] == last)
    alike = get_close_matches(asked, known, n=_NEAREST, cutoff=0.5)
    return [*dict.fromkeys([*same, *alike])][:_NEAREST]
