"""`ftrecipes generate`: the answer to a prompt with an adapter, and without it."""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ftrecipes.commands.exits import run_command
from ftrecipes.commands.screen import show
from ftrecipes.config.adapter_folder import CONFIG as ADAPTER_CONFIG
from ftrecipes.config.adapter_folder import WEIGHTS as ADAPTER_WEIGHTS
from ftrecipes.config.adapter_folder import read_adapter
from ftrecipes.config.errors import ConfigError, ModelError
from ftrecipes.config.flags import build
from ftrecipes.config.parse import parse_words
from ftrecipes.config.run_files import settings_file
from ftrecipes.config.schema import GenerateConfig, RunConfig, TrainConfig
from ftrecipes.config.source import Source

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Settings of a run that decide how the base model is stored and computed, and how many rows it has.
STORED_AS = (
    *("dtype", "mixed_precision", "pure_bf16", "use_fp16", "quantization"),
    *("new_tokens", "resize_embeddings"),
)


def main(argv: list[str] | None = None) -> NoReturn:
    """Print the answers for the flags in `argv` and leave with an exit code."""
    run_command("generate", argv, _generate)


def _generate(words: list[str]) -> None:
    config = parse_words(words, into=GenerateConfig).config
    from ftrecipes.runtime import log

    log.start()
    for title, text in answers(config):
        show(f"--- {title}\n{text}\n")


def answers(config: GenerateConfig) -> Iterator[tuple[str, str]]:
    """Pairs of (who answers, answer): the base model, then the adapter, as asked.

    `config.adapter` may also be a fully fine-tuned model's run folder; it answers alone. The base
    is loaded as run.yaml in the folder says, quantized if it was. Raises ConfigError for a prompt
    that can not be used, and ModelError for a model or adapter that can not.
    """
    from ftrecipes.config.precision import resolve_precision
    from ftrecipes.model.generation import generate
    from ftrecipes.model.load import load_model
    from ftrecipes.model.resolve import (
        check_vocabulary,
        load_tokenizer,
        resolve_source,
        settle_quantization,
    )
    from ftrecipes.model.vocabulary import resize
    from ftrecipes.runtime.seed import seed_everything
    from ftrecipes.runtime.world import start_world

    world = start_world(config.device)
    folder = Path(config.adapter).expanduser() if config.adapter else None
    is_adapter = folder is not None and (folder / ADAPTER_CONFIG).exists()
    if is_adapter:
        check_weights(folder)
    # Without an adapter nothing is trained here: the weights stay in the checkpoint's dtype.
    run = trained_with(folder) if is_adapter else RunConfig(train=TrainConfig(use_peft=True))
    source = resolve_source(
        config.model_name or (base_of(folder) if is_adapter else str(folder)),
        str(folder) if is_adapter and (folder / "tokenizer_config.json").exists() else None,
        trust_remote_code=config.trust_remote_code,
    )
    tokenizer = load_tokenizer(source)
    run = settle_quantization(run, source)
    precision = resolve_precision(
        run, device_type=world.device.type, checkpoint_dtype=source.checkpoint_dtype
    )
    ids = prompt_ids(tokenizer, config.prompt, system=config.system, plain=config.plain)
    taken = len(ids) + (virtual_tokens_of(folder) if is_adapter else 0)
    config = leave_room(config, prompt_length=taken, limit=source.max_length)
    model = load_model(source, run, precision, world.device).eval()
    resize(model, tokenizer, run)
    check_vocabulary(max(ids), model)

    def answer(model: "PreTrainedModel | PeftModel") -> str:
        seed_everything(config.seed)
        room, temperature = config.max_new_tokens, config.temperature
        return generate(model, tokenizer, ids, max_new_tokens=room, temperature=temperature)

    if not is_adapter or config.compare:
        yield f"without the adapter: {source.name}" if is_adapter else source.name, answer(model)
    if is_adapter:
        yield f"with the adapter: {folder}", answer(adapted(model, folder))


def trained_with(folder: Path) -> RunConfig:
    """How the base was stored and computed while the adapter trained: run.yaml, or the defaults.

    Raises ConfigError for a run.yaml with values that no run can have.
    """
    from ftrecipes.config.files import read_settings

    path = settings_file(folder)
    source = Source(RunConfig, file=str(path))
    if path.exists():
        settings = read_settings(str(path))
        source.take_all({name: settings[name] for name in STORED_AS if name in settings})
    if source.faults:
        raise ConfigError([fault.text for fault in source.faults])
    return build(RunConfig, source.values | {"use_peft": True})


def check_weights(folder: Path) -> None:
    """Raise ModelError for an adapter without weights: PEFT would look for them on the hub."""
    if not any((folder / name).is_file() for name in ADAPTER_WEIGHTS):
        raise ModelError(
            f"The folder {folder} holds no weights of an adapter.\n"
            f"  expected: {' or '.join(ADAPTER_WEIGHTS)} beside {ADAPTER_CONFIG}\n"
            "  do: give the folder of a finished run"
        )


def base_of(folder: Path) -> str:
    """The base model that an adapter names. Raises ModelError when it names none."""
    from ftrecipes.model.resolve import loading

    with loading(str(folder), what="adapter"):
        base = read_adapter(str(folder))["base_model_name_or_path"]
    if not isinstance(base, str):
        raise ModelError(
            f"The adapter {folder} names no base model.\n"
            f"  got: base_model_name_or_path {base} in {ADAPTER_CONFIG}\n"
            "  do: name it with --model_name"
        )
    return base


def virtual_tokens_of(folder: Path) -> int:
    """Positions that a learned prompt or prefix takes before those of the person's prompt."""
    from ftrecipes.model.resolve import loading

    with loading(str(folder), what="adapter"):
        settings = read_adapter(str(folder))
        return int(settings.get("num_virtual_tokens") or 0)


def adapted(model: "PreTrainedModel", folder: Path) -> "PeftModel":
    """The model with the adapter. Raises ModelError when it is broken, or another model's."""
    from peft import PeftModel

    from ftrecipes.model.experts import adapt_packed
    from ftrecipes.model.resolve import loading

    with loading(str(folder), what="adapter"), warnings.catch_warnings():
        # PEFT goes on with random weights, and warns.
        warnings.filterwarnings("error", message="Found missing adapter keys")
        adapted = PeftModel.from_pretrained(model, str(folder)).eval()
    adapt_packed(adapted)
    return adapted


def leave_room(config: GenerateConfig, *, prompt_length: int, limit: int | None) -> GenerateConfig:
    """`config` with an answer that ends before the model's positions do."""
    from ftrecipes.runtime import log

    room = config.max_new_tokens if limit is None else limit - prompt_length
    if room <= 0:
        raise ConfigError(
            f"--prompt: too long for this model.\n  got: {prompt_length} positions\n"
            f"  expected: fewer than {limit}, so that an answer has room\n  do: shorten it"
        )
    if room < config.max_new_tokens:
        log.info(f"max_new_tokens is {room}, where the {limit} positions of this model end")
    return replace(config, max_new_tokens=min(room, config.max_new_tokens))


def prompt_ids(
    tokenizer: "PreTrainedTokenizerBase", prompt: str, *, system: str | None, plain: bool = False
) -> list[int]:
    """Ids of the prompt as in training: the chat template's, else the Alpaca prompt, or `plain`."""
    from ftrecipes.data.prompts import PromptRefused, encode_prompt

    messages = [{"role": "user", "content": prompt}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    try:
        return encode_prompt(tokenizer, messages, plain=plain)
    except PromptRefused as refusal:
        if system is not None and tokenizer.chat_template is None:
            what, do = "--system: there is no place for it", "put that text into --prompt"
        elif system is not None:
            what = "--prompt: the chat template refuses it with --system"
            do = "put that text into --prompt"
        else:
            what, do = "--prompt: the chat template refuses it", "say it in another way"
        raise ConfigError(f"{what}.\n  got: {refusal}\n  do: {do}") from refusal
