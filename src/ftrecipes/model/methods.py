"""The adapter methods beside LoRA, as PEFT wants them told."""

from collections.abc import Sequence

import peft
import torch
from peft.utils.constants import (
    TRANSFORMERS_MODELS_TO_IA3_FEEDFORWARD_MODULES_MAPPING as KNOWN_FEEDFORWARD,
)
from peft.utils.constants import TRANSFORMERS_MODELS_TO_IA3_TARGET_MODULES_MAPPING as KNOWN_TARGETS
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.pytorch_utils import Conv1D

from ftrecipes.config.adapter_sections import Ia3Config
from ftrecipes.config.errors import ConfigError, ModelError
from ftrecipes.config.schema import RunConfig
from ftrecipes.model.lora import lora_config
from ftrecipes.model.module_names import check_matches, linear_names, names_or_pattern, rule_of
from ftrecipes.model.rewritten import is_rewriting
from ftrecipes.runtime import log

# The only types that PEFT 0.21 knows (peft/tuners/adaption_prompt/config.py)
_LLAMA_ADAPTER_TYPES = ("llama", "mistral", "gpt2")


def peft_config(
    model: PreTrainedModel, config: RunConfig, *, new_token_ids: Sequence[int] = ()
) -> peft.PeftConfig:
    """The settings of `--peft_method` for this model.

    Raises ModelError when the method does not fit the model's type or names match nothing.
    """
    method = config.train.peft_method
    if method == "lora":
        settings = lora_config(model, config.lora, new_token_ids=new_token_ids)
        _check_rewriting(settings, config)
        return settings
    if new_token_ids:
        raise ModelError(
            f"--peft_method {method} can not train the embeddings of new tokens.\n"
            f"  got: {len(new_token_ids)} tokens whose rows would stay untrained\n"
            "  do: use --peft_method lora, or leave --new_tokens and --resize_embeddings out"
        )
    if method == "ia3":
        return _ia3_config(model, config.ia3)
    if method == "prefix":
        return peft.PrefixTuningConfig(
            task_type="CAUSAL_LM",
            num_virtual_tokens=config.prefix.num_virtual_tokens,
            prefix_projection=config.prefix.prefix_projection,
            encoder_hidden_size=model.config.get_text_config().hidden_size,
        )
    if method == "prompt":
        return peft.PromptTuningConfig(
            task_type="CAUSAL_LM",
            num_virtual_tokens=config.prompt.num_virtual_tokens,
            prompt_tuning_init="SAMPLE_VOCAB",
        )
    return _llama_adapter_config(model, config)


def _check_rewriting(settings: peft.LoraConfig, config: RunConfig) -> None:
    """Also for a base that its own files quantize, which no flag tells."""
    if is_rewriting(settings) and config.quantization.method != "none":
        raise ModelError(
            f"--lora.init_lora_weights {settings.init_lora_weights} rewrites the base weights, and "
            f"these are quantized.\n  got: {config.quantization.method}\n"
            "  do: use another initialisation, or a base that is not quantized"
        )


def start_from_text(model: peft.PeftModel, text: str, tokenizer: PreTrainedTokenizerBase) -> None:
    """Let the learned prompt start at the embeddings of `text`, repeated or cut to its length.

    PEFT would read the tokenizer again by a name that goes into the adapter's file. Raises
    ConfigError for a text without tokens.
    """
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if not ids:
        raise ConfigError(
            "--prompt.init_text: this tokenizer makes no tokens of it.\n"
            f"  got: {text!r}\n  do: give another text, or leave it out"
        )
    (encoder,) = model.prompt_encoder.values()
    length = encoder.embedding.num_embeddings
    embedding = model.get_input_embeddings()
    repeated = torch.tensor((ids * length)[:length]).to(embedding.weight.device)
    with torch.no_grad():
        encoder.embedding.weight.copy_(embedding(repeated))


def _ia3_config(model: PreTrainedModel, ia3: Ia3Config) -> peft.IA3Config:
    modules = [name for name, _ in model.named_modules()]
    check_matches(
        model,
        {
            "ia3.target_modules": (ia3.target_modules, modules, rule_of(ia3.target_modules)),
            "ia3.feedforward_modules": (
                ia3.feedforward_modules, modules, rule_of(ia3.feedforward_modules)
            ),
        },
    )  # fmt: skip
    kind = model.config.model_type
    targets = ia3.target_modules or _existing(KNOWN_TARGETS.get(kind, []), modules)
    if not targets:
        raise ModelError(
            f"--peft_method ia3: PEFT knows no modules for models of type {kind}.\n"
            f"  expected: names of its linear layers: {', '.join(linear_names(model))}\n"
            "  do: name those that make keys and values, and the last of the feed-forward block, "
            "in --ia3.target_modules, and the latter in --ia3.feedforward_modules too"
        )
    feedforward = ia3.feedforward_modules or [
        name for name in KNOWN_FEEDFORWARD.get(kind, []) if name in targets
    ]
    return peft.IA3Config(
        task_type="CAUSAL_LM",
        target_modules=names_or_pattern(targets),
        feedforward_modules=names_or_pattern(feedforward) or [],
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
    )


def _existing(names: list[str], modules: list[str]) -> list[str]:
    """Those of PEFT's names that this model has; some were made for an older form of its type."""
    found = [name for name in names if any(f".{m}".endswith(f".{name}") for m in modules)]
    if found and found != names:
        missing = ", ".join(name for name in names if name not in found)
        log.info(f"IA3 goes to {', '.join(found)}; this model has no {missing}")
    return found


def _llama_adapter_config(model: PreTrainedModel, config: RunConfig) -> peft.AdaptionPromptConfig:
    kind = model.config.model_type
    if kind not in _LLAMA_ADAPTER_TYPES:
        raise ModelError(
            "--peft_method llama_adapter: PEFT has it for few types of models.\n"
            f"  got: {kind}\n  expected: one of {', '.join(_LLAMA_ADAPTER_TYPES)}\n"
            "  do: use another method, such as lora"
        )
    layers = model.config.get_text_config().num_hidden_layers
    return peft.AdaptionPromptConfig(
        task_type="CAUSAL_LM",
        adapter_len=config.llama_adapter.adapter_len,
        adapter_layers=min(config.llama_adapter.adapter_layers, layers),
    )
