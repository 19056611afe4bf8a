"""The sections of the adapter methods; see config/schema.py."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class LoraConfig:
    """LoRA adapters; the names are those of peft.LoraConfig."""

    r: int = 16
    """Rank of each update."""
    lora_alpha: float = 32.0
    """Scale of the update, divided by `r` (by its square root with `use_rslora`)."""
    lora_dropout: float = 0.0
    """Dropout on the adapters' input, as a probability."""
    target_modules: list[str] = field(default_factory=lambda: ["all-linear"])
    """Modules that get an adapter: name suffixes, one regular expression, or all-linear (all
    but the head)."""
    exclude_modules: list[str] = field(default_factory=list)
    """Modules that get none although they match `target_modules`."""
    target_parameters: list[str] = field(default_factory=list)
    """Parameters, not modules, that get an adapter, e.g. `mlp.experts.gate_up_proj` of a
    mixture of experts."""
    bias: Literal["none", "all", "lora_only"] = "none"
    """Biases that are trained too."""
    modules_to_save: list[str] = field(default_factory=list)
    """Modules that are trained whole and saved with the adapter."""
    use_rslora: bool = False
    """Scale by `lora_alpha` / sqrt(r)."""
    use_dora: bool = False
    """Train magnitude and direction apart (DoRA)."""
    init_lora_weights: Literal["true", "gaussian", "orthogonal", "pissa", "olora"] = "true"
    """How the update starts: `true` = Kaiming uniform A and a B of zero; `pissa` and `olora` take
    it out of the base weights, and are saved as plain LoRA of rank 2 r on the unchanged base."""
    layers_to_transform: list[int] = field(default_factory=list)
    """Indices of the decoder blocks that get adapters; empty = all."""
    layers_pattern: list[str] = field(default_factory=list)
    """Name of the block list when it is not a common one, with `layers_to_transform`."""
    rank_pattern: dict[str, int] = field(default_factory=dict)
    """Other ranks for some modules, as JSON: {"q_proj": 8}."""
    alpha_pattern: dict[str, float] = field(default_factory=dict)
    """Other `lora_alpha` for some modules, as JSON."""


@dataclass(frozen=True)
class Ia3Config:
    """IA3 adapters: one learned factor a channel; the names are those of peft.IA3Config."""

    target_modules: list[str] = field(default_factory=list)
    """Modules that get factors, as name suffixes; empty = PEFT's choice for the model type."""
    feedforward_modules: list[str] = field(default_factory=list)
    """Those of `target_modules` whose input is scaled instead of their output; empty = PEFT's
    choice."""


@dataclass(frozen=True)
class PrefixConfig:
    """Prefix tuning: learned keys and values before each row, in every layer."""

    num_virtual_tokens: int = 30
    """Positions of the prefix."""
    prefix_projection: bool = False
    """Learn the prefix through a small network (needs more memory while training)."""


@dataclass(frozen=True)
class PromptConfig:
    """Prompt tuning: learned embeddings before each row."""

    num_virtual_tokens: int = 30
    """Positions of the learned prompt."""
    init_text: str | None = None
    """Text whose embeddings the learned prompt starts from; unset = random tokens."""


@dataclass(frozen=True)
class LlamaAdapterConfig:
    """LLaMA-Adapter: learned prompts in the attention of the upper blocks, behind a gate."""

    adapter_len: int = 10
    """Positions of the prompt of each block."""
    adapter_layers: int = 30
    """Blocks from the top that get one; more than there are means all."""
