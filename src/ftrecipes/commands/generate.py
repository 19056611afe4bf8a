"""`ftrecipes generate`: the answer to a prompt with an adapter, and without it."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ftrecipes.commands.exits import end
from ftrecipes.commands.screen import show
from ftrecipes.config.errors import ConfigError
from ftrecipes.config.help import help_text
from ftrecipes.config.parse import parse_words
from ftrecipes.config.schema import GenerateConfig, QuantizationConfig, RunConfig, TrainConfig

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

ADAPTER_CONFIG = "adapter_config.json"


def main(argv: list[str] | None = None) -> NoReturn:
    """Print the answers for the flags in `argv` and leave with an exit code."""
    words = sys.argv[1:] if argv is None else argv
    if "--help" in words or "-h" in words:
        show(help_text("generate"))
        sys.exit(0)
    end(lambda: _generate(words))


def _generate(words: list[str]) -> None:
    config = parse_words(words, into=GenerateConfig).config
    from ftrecipes.runtime import log

    log.start()
    for title, text in answers(config):
        show(f"--- {title}\n{text}\n")


def answers(config: GenerateConfig) -> Iterator[tuple[str, str]]:
    """Pairs of (who answers, answer): the base model, then the adapter, as asked.

    `config.adapter` may also be a fully fine-tuned model's run folder; it answers alone. The base
    is loaded as run.yaml in the folder says, quantized if it was.
    """
    from ftrecipes.config.precision import resolve_precision
    from ftrecipes.model.load import load_model
    from ftrecipes.model.resolve import load_tokenizer, resolve_source
    from ftrecipes.runtime.seed import seed_everything
    from ftrecipes.runtime.world import start_world

    world = start_world(config.device)
    folder = Path(config.adapter).expanduser() if config.adapter else None
    is_adapter = folder is not None and (folder / ADAPTER_CONFIG).exists()
    # Without an adapter nothing is trained here: the weights stay in the checkpoint's dtype.
    run = trained_with(folder) if is_adapter else RunConfig(train=TrainConfig(use_peft=True))
    source = resolve_source(
        config.model_name or (base_of(folder) if is_adapter else str(folder)),
        str(folder) if is_adapter and (folder / "tokenizer_config.json").exists() else None,
        trust_remote_code=config.trust_remote_code,
    )
    tokenizer = load_tokenizer(source)
    precision = resolve_precision(
        run, device_type=world.device.type, checkpoint_dtype=source.checkpoint_dtype
    )
    model = load_model(source, run, precision, world.device).eval()
    ids = prompt_ids(tokenizer, config.prompt, system=config.system)

    def answer(model: "PreTrainedModel | PeftModel") -> str:
        seed_everything(config.seed)
        return generate(model, tokenizer, ids, config)

    if not is_adapter or config.compare:
        yield f"without the adapter: {source.name}" if is_adapter else source.name, answer(model)
    if is_adapter:
        from peft import PeftModel

        adapted = PeftModel.from_pretrained(model, str(folder)).eval()
        yield f"with the adapter: {folder}", answer(adapted)


def trained_with(folder: Path) -> RunConfig:
    """How the base was stored and computed while the adapter trained: run.yaml, or the defaults."""
    from ftrecipes.config.files import read_settings

    path = folder / "run.yaml"
    if not path.exists():
        return RunConfig(train=TrainConfig(use_peft=True))
    settings = read_settings(str(path))
    quantization = QuantizationConfig(**settings["quantization"])
    names = ("use_peft", "dtype", "mixed_precision", "pure_bf16", "use_fp16")
    train = TrainConfig(**{name: settings[name] for name in names})
    return RunConfig(train=train, quantization=quantization)


def base_of(folder: Path) -> str:
    """The base model that an adapter names."""
    settings = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    return settings["base_model_name_or_path"]


def prompt_ids(
    tokenizer: "PreTrainedTokenizerBase", prompt: str, *, system: str | None
) -> list[int]:
    """Ids of the prompt as in training: the chat template's, else the Alpaca prompt."""
    from ftrecipes.data.encode import opening_ids
    from ftrecipes.data.formats import alpaca_prompt

    if tokenizer.chat_template is not None:
        messages = [{"role": "user", "content": prompt}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return tokenizer(text, add_special_tokens=False)["input_ids"]
    if system is not None:
        raise ConfigError(
            "--system: this tokenizer has no chat template, so there is no place for it.\n"
            "  do: put it into --prompt"
        )
    text = tokenizer(alpaca_prompt(prompt), add_special_tokens=False)["input_ids"]
    return [*opening_ids(tokenizer), *text]


def generate(
    model: "PreTrainedModel | PeftModel",
    tokenizer: "PreTrainedTokenizerBase",
    ids: list[int],
    config: GenerateConfig,
) -> str:
    """The model's answer to `ids`, special tokens left out."""
    import torch

    inputs = torch.tensor([ids], device=model.device)
    sampling = {"temperature": config.temperature} if config.temperature > 0 else {}
    with torch.inference_mode():
        output = model.generate(
            input_ids=inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=config.max_new_tokens,
            do_sample=config.temperature > 0,
            pad_token_id=tokenizer.eos_token_id,
            **sampling,
        )
    return tokenizer.decode(output[0, len(ids) :], skip_special_tokens=True)
