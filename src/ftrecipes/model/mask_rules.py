"""Do a model's layers attend as row attention does? Asked of transformers itself.

The attention function below is registered beside a mask function of the same name. transformers
then hands over the rule of each mask it would build, a function of two positions, and the rule is
compared with what the attention was told by keyword. So a window that a model applies by its mask
only, or chunked attention, shows with a row shorter than the window.
https://huggingface.co/docs/transformers/attention_interface
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from ftrecipes.model.attention import RowLayout, UnsupportedAttention, attend_rows

RECORDED_ATTENTION = "ftrecipes_recorded"
_FARTHEST = 2**17  # positions up to which rules are compared


@dataclass(frozen=True)
class MaskRule:
    """What a mask would be built from: (batch, head, query, key) index tensors -> may attend."""

    allows: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Call:
    """One call of the attention function: the layer's module, the mask and the window it gave."""

    module: nn.Module
    mask: object
    window: int | None


@dataclass(frozen=True)
class Recording:
    """Travels through a model as its `row_layout` and collects the calls of RECORDED_ATTENTION."""

    layout: RowLayout
    calls: list[Call]


def _make_rule(*, mask_function: Callable, **_) -> MaskRule:
    """transformers' mask function signature; the rule takes the place of the mask."""
    return MaskRule(mask_function)


def _record_and_attend(
    module, query, key, value, attention_mask, *, row_layout=None, sliding_window=None, **keywords
):
    """transformers' attention function signature; attends as `attend_rows` without a mask."""
    if row_layout is None:
        raise UnsupportedAttention("the model does not hand row_layout on to its attention")
    row_layout.calls.append(Call(module, attention_mask, sliding_window))
    keywords |= {"row_layout": row_layout.layout, "sliding_window": sliding_window}
    return attend_rows(module, query, key, value, None, **keywords)


AttentionInterface.register(RECORDED_ATTENTION, _record_and_attend)
AttentionMaskInterface.register(RECORDED_ATTENTION, _make_rule)


def check_calls(calls: list[Call], *, num_layers: int) -> None:
    """Raise UnsupportedAttention unless each layer attended once, as row attention does."""
    if not calls:
        raise UnsupportedAttention("its attention does not go through transformers' interface")
    modules = {call.module for call in calls}
    if not len(calls) == len(modules) == num_layers:
        raise UnsupportedAttention(
            f"its {num_layers} layers made {len(calls)} calls of the attention function in "
            f"{len(modules)} modules, not one each"
        )
    for mask, window in {(call.mask, call.window) for call in calls}:
        if not isinstance(mask, MaskRule):
            raise UnsupportedAttention("its attention masks are not transformers' own")
        _check_rule(mask, window)


def _check_rule(rule: MaskRule, window: int | None) -> None:
    """A query must see itself and the keys before it, `window` of them in all, near and far."""
    query = torch.tensor([[0], [1], [_FARTHEST // 3], [_FARTHEST - 1]])
    key = torch.arange(_FARTHEST).unsqueeze(0)
    kept = (key <= query) & (key > query - (_FARTHEST if window is None else window))
    zero = torch.zeros((), dtype=torch.int64)
    if not torch.equal(rule.allows(zero, zero, query, key).expand_as(kept), kept):
        raise UnsupportedAttention(
            "its masks are not the causal ones, with the window that its attention is told"
        )
