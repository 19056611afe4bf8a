"""Causal attention over rows that lie one after another in one long sequence, without a mask.

Registered with transformers' AttentionInterface under ROW_ATTENTION. transformers builds no mask
for a name without a mask function, so that the row lengths are all that separates the rows; they
travel through the model's forward as the keyword `row_layout`.
https://huggingface.co/docs/transformers/attention_interface

Shapes: n rows of equal length, T positions of all rows, L of one row, S keys, w window,
H query heads, K key heads (H a multiple of K), E head width.
"""

from dataclasses import dataclass
from itertools import accumulate, groupby

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface

from ftrecipes.runtime.devices import cuda_capability, to_device

ROW_ATTENTION = "ftrecipes_rows"

# Keywords that models pass along to every attention function and that change nothing here.
_WITHOUT_EFFECT = frozenset(
    {"position_ids", "use_cache", "cache_position", "output_attentions", "output_hidden_states"}
)


class UnsupportedAttention(Exception):
    """A model asks for something that row attention does not do; use the padded path."""


@dataclass(frozen=True)
class RowLayout:
    """Where the rows of a flat sequence lie."""

    lengths: tuple[int, ...]
    boundaries: Tensor  # int32 [rows + 1] on the model's device: 0, end of row 1, end of row 2, ...

    @classmethod
    def of(cls, lengths: tuple[int, ...], device: torch.device) -> "RowLayout":
        """Layout of rows of these lengths in positions."""
        ends = list(accumulate(lengths, initial=0))
        return cls(tuple(lengths), to_device(torch.tensor(ends, dtype=torch.int32), device))


@dataclass(frozen=True)
class _Rule:
    """What one attention layer asks for beside causality."""

    scale: float
    dropout: float
    window: int | None
    softcap: float | None
    sinks: Tensor | None  # [H] one logit a head that takes part in the softmax and yields nothing


def attend_rows(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    row_layout: RowLayout | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **others,
) -> tuple[Tensor, None]:
    """Causal attention within each row; transformers' attention function signature.

    query [1, H, T, E], key and value [1, K, T, E]; returns ([1, T, H, E of value], None). On CUDA
    in half precision it is one varlen call (not yet run on a GPU); else one call for each run of
    rows of equal length. Scores are written out (L x L or L x 2w) only for a soft cap, sinks or
    dropout. Raises UnsupportedAttention for anything it does not know.
    """
    unknown = [k for k, v in others.items() if v is not None and k not in _WITHOUT_EFFECT]
    if unknown:
        raise UnsupportedAttention(f"attention is called with the keyword {unknown[0]}")
    if attention_mask is not None or is_causal is False:
        raise UnsupportedAttention("attention is called with a mask of the model's own")
    if row_layout is None:
        raise UnsupportedAttention("the model does not hand row_layout on to its attention")
    if query.shape[0] != 1 or not query.shape[2] == key.shape[2] == sum(row_layout.lengths):
        raise UnsupportedAttention(f"queries {tuple(query.shape)} are not the rows laid flat")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rule = _Rule(scale, dropout if module.training else 0.0, sliding_window, softcap, s_aux)
    width = value.shape[-1]
    if width < key.shape[-1]:  # fused kernels want one width (multi-head latent attention has two)
        value = F.pad(value, (0, key.shape[-1] - width))
    attend = _attend_varlen if _has_varlen(query, rule) else _attend_split
    output = attend(query, key, value, row_layout=row_layout, rule=rule)
    return (output if width == output.shape[-1] else output[..., :width]), None


AttentionInterface.register(ROW_ATTENTION, attend_rows)


def _has_varlen(query: Tensor, rule: _Rule) -> bool:
    """What torch's FlashAttention 2 can do: half precision, width <= 256, nothing unusual."""
    if rule.dropout or rule.softcap is not None or rule.sinks is not None:
        return False
    half = _compute_dtype(query) in (torch.bfloat16, torch.float16)
    width = query.shape[-1]
    modern = cuda_capability(query.device) >= (8, 0)
    return half and modern and width <= 256 and width % 8 == 0


def _compute_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype autocast would give a matmul; a custom operator does not get it by itself."""
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensor.dtype


def _attend_varlen(
    query: Tensor, key: Tensor, value: Tensor, *, row_layout: RowLayout, rule: _Rule
) -> Tensor:
    """All rows in one kernel; [1, T, H, E]. Not yet run on a GPU."""
    dtype = _compute_dtype(query)
    query, key, value = (x.squeeze(0).transpose(0, 1).to(dtype) for x in (query, key, value))
    longest = max(row_layout.lengths)
    output = varlen_attn(
        query,
        key,
        value,
        row_layout.boundaries,
        row_layout.boundaries,
        longest,
        longest,
        scale=rule.scale,
        # the kernel counts the keys to the left of the query, transformers counts the query too
        window_size=(-1 if rule.window is None else rule.window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output.unsqueeze(0)


def _attend_split(
    query: Tensor, key: Tensor, value: Tensor, *, row_layout: RowLayout, rule: _Rule
) -> Tensor:
    """One call for each run of equally long rows; [1, T, H, E].

    `split`, never a slice a row: the backward of a slice writes zeros at all T positions for every
    row, the backward of `split` is one `cat`.
    """
    runs = [(length, len(list(run))) for length, run in groupby(row_layout.lengths)]
    sizes = [length * count for length, count in runs]
    pieces = zip(*(x.squeeze(0).split(sizes, dim=1) for x in (query, key, value)), strict=True)
    outputs = []
    for (length, count), piece in zip(runs, pieces, strict=True):
        q, k, v = (x.unflatten(1, (count, length)).transpose(0, 1) for x in piece)
        windowed = rule.window is not None and rule.window < length
        output = _attend_window(q, k, v, rule) if windowed else _attend(q, k, v, None, rule)
        outputs.append(output.transpose(1, 2).flatten(0, 1))
    return torch.cat(outputs).unsqueeze(0)


def _attend_window(q: Tensor, k: Tensor, v: Tensor, rule: _Rule) -> Tensor:
    """Each query sees itself and the w - 1 keys before it; [n, H, L, E] from q [n, H, L, E].

    Queries go in blocks of w, each against its own block of keys and the one before: L x 2w scores.
    """
    length, window = q.shape[2], rule.window
    blocks = -(-length // window)
    padding = blocks * window - length
    q, k, v = (F.pad(x, (0, 0, 0, padding)).unflatten(2, (blocks, window)) for x in (q, k, v))
    first = _attend(q[:, :, 0], k[:, :, 0], v[:, :, 0], None, rule)
    k, v = (torch.cat((x[:, :, :-1], x[:, :, 1:]), dim=3) for x in (k, v))
    later = [x.transpose(1, 2).flatten(0, 1) for x in (q[:, :, 1:], k, v)]
    ahead = (
        torch.arange(2 * window, device=q.device) - torch.arange(window, device=q.device)[:, None]
    )
    band = (ahead > 0) & (ahead <= window)
    rest = _attend(*later, band, rule).unflatten(0, (-1, blocks - 1)).transpose(1, 2).flatten(2, 3)
    return torch.cat((first, rest), dim=2)[:, :, :length]


def _attend(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, rule: _Rule) -> Tensor:
    """q [n, H, L, E]; k, v [n, K, S, E]; allowed bool [L, S], None is causal; [n, H, L, E]."""
    if rule.softcap is not None or rule.sinks is not None:
        return _attend_in_full(q, k, v, allowed, rule)
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=allowed,
        dropout_p=rule.dropout,
        is_causal=allowed is None,
        scale=rule.scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )


def _attend_in_full(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, rule: _Rule) -> Tensor:
    """As `_attend`, with the scores written out: no fused kernel has a soft cap or sinks."""
    (_, heads, length, _), keys = q.shape, k.shape[1:3]
    if allowed is None:
        allowed = torch.ones(length, keys[1], dtype=torch.bool, device=q.device).tril()
    # the query heads that share a key head become more queries of it, so that no key is repeated
    grouped = q.unflatten(1, (keys[0], -1)).flatten(2, 3)
    scores = (grouped @ k.transpose(-1, -2) * rule.scale).unflatten(2, (-1, length))
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if rule.softcap is not None:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    scores = scores.masked_fill(~allowed, -torch.inf)
    if rule.sinks is not None:
        sinks = rule.sinks.to(scores.dtype).view(1, keys[0], -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, sinks), dim=-1)
    weights = scores.softmax(dim=-1)[..., : keys[1]].to(v.dtype)
    weights = F.dropout(weights, rule.dropout)
    return (
        (weights.flatten(2, 3) @ v)
        .unflatten(2, (-1, length))
        .reshape(q.shape[0], heads, length, -1)
    )
