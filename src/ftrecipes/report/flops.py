"""Floating-point operations of a step by a formula.

The formula follows PaLM's (arXiv:2204.02311, appendix B): what the model needs, whatever is
computed beside it. A weight matrix of n entries takes 2 n FLOPs a position in the forward, 2 n more
for the gradient of its input where something before it is trained, and 2 n more for its own
gradient where it is trained itself. Attention takes 2 H (E of keys + E of values) FLOPs for each
query and each key of its row (of its window, where there is one), future keys included as there,
and twice that in the backward. The head works at counted tokens only. Embeddings, norms, scans and
softmax, padding and recomputed activations are not in it.

Shapes: H query heads, E width of a head.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedConfig

from ftrecipes.model.forward import causal_lm, decoder_of, is_prompted
from ftrecipes.model.module_names import canonical_name
from ftrecipes.model.packed import weight_counts

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_ACTIVE_EXPERTS = ("num_experts_per_tok", "moe_topk", "moe_k")
# PEFT keeps the untrained module beside the one of modules_to_save; tokens are looked up
_UNUSED = re.compile(r"(^|\.)(original_module|trainable_tokens_\w+)\.")
_OF_EXPERTS = re.compile(r"(^|\.)experts\.")
_BLOCK = re.compile(r"(?:^|\.)(\d+)\.")


@dataclass(frozen=True)
class FlopFormula:
    """FLOPs of forward and backward of one model as it is trained."""

    per_position: int
    """Of the decoder's matrices, a position."""
    per_token: int
    """Of the head's, a token."""
    per_pair: Mapping[int | None, int]
    """Window of attention layers (None = whole rows) -> theirs, a pair of query and key."""

    def count(self, lengths: Sequence[int], num_tokens: int) -> int:
        """FLOPs of rows of these lengths in positions, with `num_tokens` counted labels."""
        attention = 0
        for window, per_pair in self.per_pair.items():
            keys = (length if window is None else min(length, window) for length in lengths)
            attention += per_pair * sum(n * k for n, k in zip(lengths, keys, strict=True))
        return sum(lengths) * self.per_position + num_tokens * self.per_token + attention


def flop_formula(model: nn.Module) -> FlopFormula | None:
    """The formula of `model` with what is trained of it now.

    None where its config does not say how many experts are active or how wide attention is. A
    learned prompt adds positions, which are not counted.
    """
    lm = causal_lm(model)
    config = lm.config.get_text_config()
    head = lm.get_output_embeddings() or nn.Module()
    tables = [m for m in lm.modules() if isinstance(m, nn.Embedding)]
    skipped = {id(p) for module in (head, *tables) for p in module.parameters()}
    decoder = decoder_of(lm)
    named = [(name, p) for name, p in decoder.named_parameters() if not _UNUSED.search(name)]
    counts = weight_counts(decoder)
    reached = _reached(named, is_prompted(model))
    active = _active_share(config)
    per_position = 0.0
    for name, parameter in named:
        if id(parameter) in skipped or parameter.dim() < 2:
            continue
        passes = 1 + reached.before[name] + parameter.requires_grad
        if _OF_EXPERTS.search(name) and active is None:
            return None
        share = active if _OF_EXPERTS.search(name) else 1
        per_position += 2 * counts[canonical_name(name)] * passes * share
    of_head = weight_counts(head)
    per_token = sum(
        2 * of_head[canonical_name(name)] * (2 + parameter.requires_grad)
        for name, parameter in head.named_parameters()
        if parameter.dim() >= 2
    )
    per_pair = _attention(config, reached)
    return None if per_pair is None else FlopFormula(round(per_position), per_token, per_pair)


@dataclass(frozen=True)
class _Reached:
    """Where the gradient goes: to whatever comes after the first trained parameter."""

    before: Mapping[str, bool]
    """Name of a parameter -> whether its input needs a gradient."""
    blocks: Mapping[int, bool]
    """Number of a block -> whether its attention needs one."""


def _reached(named: Sequence[tuple[str, nn.Parameter]], start: bool) -> _Reached:
    """Parameters come in the order of the forward, but for siblings that share one input."""
    before, blocks, trained = {}, {}, start
    for name, parameter in named:
        before[name] = trained
        trained = trained or parameter.requires_grad
        if block := _BLOCK.search(name):
            blocks[int(block[1])] = trained
    return _Reached(before, blocks)


def _attention(config: PreTrainedConfig, reached: _Reached) -> dict[int | None, int] | None:
    """Window -> FLOPs a pair over all layers with it; None where the config is of another kind."""
    layers, heads = _setting(config, "num_hidden_layers"), _setting(config, "num_attention_heads")
    if heads is None:
        return {}
    keys, hidden = _setting(config, "head_dim"), _setting(config, "hidden_size")
    rope, rest = (_setting(config, f"qk_{part}_head_dim") for part in ("rope", "nope"))
    if rope and rest:  # multi-head latent attention
        keys = rope + rest
    elif keys is None and isinstance(heads, int) and isinstance(hidden, int):
        keys = hidden // heads
    values = _setting(config, "v_head_dim") or keys
    if not all(isinstance(number, int) for number in (layers, heads, keys, values)):
        return None
    windows = {
        "sliding_attention": _setting(config, "sliding_window"),
        "chunked_attention": _setting(config, "attention_chunk_size"),
    }
    usual = "full_attention" if windows["sliding_attention"] is None else "sliding_attention"
    found: Counter[int | None] = Counter()
    for block, kind in enumerate(_setting(config, "layer_types") or [usual] * layers):
        if "attention" in kind and "linear" not in kind:
            passes = 1 + 2 * reached.blocks.get(block, True)
            found[windows.get(kind)] += 2 * heads * (keys + values) * passes
    return dict(found)


def _active_share(config: PreTrainedConfig) -> float | None:
    """Experts that work on a position / all routed experts."""
    active, experts = _setting(config, *_ACTIVE_EXPERTS), _setting(config, *_EXPERTS)
    return active / experts if isinstance(active, int) and isinstance(experts, int) else None


def _setting(config: PreTrainedConfig, *names: str) -> Any:
    """The first of the settings that the config has; None without any."""
    values = config.to_dict()
    found = (values.get(config.attribute_map.get(name, name)) for name in names)
    return next((value for value in found if value is not None), None)
