"""Flags that take words of their own: a word may set several flags, or none."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ftrecipes.config.values import FALSE_WORDS, TRUE_WORDS


@dataclass(frozen=True)
class Words:
    """`settings`: word -> canonical flag -> value. `hints`: what other words may have meant."""

    settings: Mapping[str, Mapping[str, object]]
    hints: Mapping[str, str] = field(default_factory=dict)

    def read(self, value: object) -> Mapping[str, object]:
        """The flags that `value` sets. Raises ValueError, with a hint where there is one."""
        word = "none" if value is None else str(value).strip().lower()
        if word not in self.settings and word not in self.hints:
            word = _truth(word)
        if word not in self.settings:
            raise ValueError(self.hints.get(word, ""))
        return self.settings[word]

    @property
    def expected(self) -> str:
        """The words, for a person."""
        return "one of " + ", ".join(self.settings)


def words_of(canonical: str, name: str) -> Words | None:
    """The words that the flag `canonical` takes when it is given as `name`, if any."""
    return _HYBRID if name.rpartition(".")[2] == "hsdp" else _WORDS.get(canonical)


def _truth(word: str) -> str:
    for name, words in (("true", TRUE_WORDS), ("false", FALSE_WORDS)):
        if word in words:
            return name
    return word


def _bits(method: str, quant_type: str = "") -> Mapping[str, str]:
    settings = {"quantization.method": method}
    return settings | ({"quantization.quant_type": quant_type} if quant_type else {})


_QUANTIZATION = Words(
    {
        "none": _bits("none"),
        "4bit": _bits("4bit"),
        "int4": _bits("4bit"),
        "nf4": _bits("4bit", "nf4"),
        "fp4": _bits("4bit", "fp4"),
        "8bit": _bits("8bit"),
        "int8": _bits("8bit"),
    },
    {
        "true": "a bare --quantization once meant 8 bits; say --quantization 8bit or 4bit",
        "false": "did you mean none?",
        "4": "did you mean 4bit?",
        "8": "did you mean 8bit?",
    },
)
_RECOMPUTE = Words(
    {
        word: {"activation_checkpointing.method": method}
        for word, method in (
            ("full", "full"),
            ("selective", "selective"),
            ("none", "none"),
            ("auto", "auto"),
            ("true", "full"),
            ("false", "none"),
        )
    },
    {
        **{
            word: f"did you mean --activation_checkpointing.target {word}?"
            for word in ("block", "attention", "mlp", "norm")
        },
        "offload": "did you mean --activation_checkpointing.offload?",
        "op": "did you mean selective?",
        "selective_op": "did you mean selective?",
    },
)
# transformers' flag; axolotl gives it other words as well.
_TRANSFORMERS = Words(
    {
        "true": {"gradient_checkpointing": True},
        "false": {"gradient_checkpointing": False},
        "none": {"gradient_checkpointing": False},
    },
    dict.fromkeys(
        ("offload", "offload_disk", "unsloth"), "did you mean --activation_checkpointing.offload?"
    ),
)
# The predecessor's --hsdp: a switch where we have one of the strategies.
_HYBRID = Words({"true": {"fsdp.sharding_strategy": "HYBRID_SHARD"}, "false": {}, "none": {}})
_WORDS = {
    "quantization.method": _QUANTIZATION,
    "activation_checkpointing.method": _RECOMPUTE,
    "gradient_checkpointing": _TRANSFORMERS,
}
