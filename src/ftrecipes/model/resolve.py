"""Which model and tokenizer are meant: read from their small files, before any weight."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ftrecipes.config.check_paths import HUB_ID
from ftrecipes.config.errors import ModelError
from ftrecipes.config.schema import RunConfig
from ftrecipes.config.stored import Stored, settled, stored_faults, stored_quantization

# Where configs say how many positions a model takes; models without a limit have none of these.
_LIMITS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")
_SHOWN = 500  # characters of another library's message


@dataclass(frozen=True)
class ModelSource:
    """A model that exists and is a causal language model; its weights have not been read."""

    name: str  # as the user gave it
    location: str  # the same, a path made absolute: what a saved adapter names as its base
    path: str  # hub id or folder
    gguf_file: str | None  # file name in the folder
    tokenizer_name: str
    tokenizer_gguf_file: str | None
    trust_remote_code: bool
    config: PretrainedConfig
    max_length: int | None  # positions the model was made for; None = no limit known
    checkpoint_dtype: str | None  # dtype name of the stored weights, None = the config does not say
    stored: Stored | None  # None = the weights are not quantized


def resolve_source(
    model_name: str, tokenizer_name: str | None, *, trust_remote_code: bool
) -> ModelSource:
    """Find the model and read its config. Raises ModelError with what to do instead."""
    path, gguf_file = _locate(model_name)
    tokenizer, tokenizer_gguf = _locate(tokenizer_name or model_name)
    with loading(model_name):
        if gguf_file is None:
            _check_folder(model_name, Path(path))
        config = AutoConfig.from_pretrained(
            path, gguf_file=gguf_file, trust_remote_code=trust_remote_code
        )
        settings = config.to_dict()
        text = config.get_text_config()
    _check_causal(model_name, config, settings)
    limits = [text.to_dict().get(name) for name in _LIMITS]
    dtype = config.dtype or text.dtype
    return ModelSource(
        name=model_name,
        location=_absolute(model_name),
        path=path,
        gguf_file=gguf_file,
        tokenizer_name=tokenizer,
        tokenizer_gguf_file=tokenizer_gguf,
        trust_remote_code=trust_remote_code,
        config=config,
        max_length=next((limit for limit in limits if limit), None),
        checkpoint_dtype=None if dtype is None else str(dtype).removeprefix("torch."),
        stored=stored_quantization(settings),
    )


def settle_quantization(config: RunConfig, source: ModelSource) -> RunConfig:
    """`config` with the quantization that the model's files have, where they have one.

    Raises ModelError when the run asks for something else, or can not use such weights.
    """
    faults = list(stored_faults(config, source.stored))
    if faults:
        raise ModelError("\n\n".join(fault.text for fault in faults))
    return settled(config, source.stored)


def load_tokenizer(source: ModelSource) -> PreTrainedTokenizerBase:
    """The tokenizer of the model, or the one asked for. No pad token is needed: nothing pads by id.

    Raises ModelError when there is none.
    """
    with loading(source.tokenizer_name, what="tokenizer"):
        return AutoTokenizer.from_pretrained(
            source.tokenizer_name,
            gguf_file=source.tokenizer_gguf_file,
            trust_remote_code=source.trust_remote_code,
        )


def identity(source: ModelSource) -> dict:
    """What tells this model from another without reading its weights: config and file sizes.

    The folder's own name is left out, so that a copy of a model is the same model.
    """
    config = source.config.to_dict()
    weights = [
        *Path(source.path).glob("*.safetensors"),
        *Path(source.path).glob(source.gguf_file or "*.bin"),
    ]
    sizes = {file.name: file.stat().st_size for file in weights}
    return {"config": config | {"_name_or_path": None}, "weight_bytes": sizes}


def check_vocabulary(largest_id: int, model: PreTrainedModel) -> None:
    """Raise ModelError when `largest_id`, the largest token id of the data, has no embedding row.

    Ids that never occur in the data (a pad token, say) may lie outside.
    """
    rows = model.get_input_embeddings().weight.shape[0]
    if largest_id >= rows:
        raise ModelError(
            f"The data contain token id {largest_id}, which the model has no embedding for.\n"
            f"  expected: ids from 0 to {rows - 1}\n"
            "  do: use the model's own tokenizer (leave --tokenizer_name out), or add rows for all "
            "tokens of this one, and train those: --resize_embeddings"
        )


@contextmanager
def loading(name: str, *, what: str = "model") -> Iterator[None]:
    """Turn what transformers raises for a bad model into a ModelError that says what to do.

    It may be anything: a config with a zero or a wrong type in it fails where it is first used, and
    a model may bring its own code.
    """
    try:
        yield
    except (ModelError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        raise ModelError(
            f"The {what} {name} can not be loaded.\n"
            f"  got: {_first_lines(error)}\n  do: {_advice(error, name)}"
        ) from error


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines[:2])[:_SHOWN]
    # These say little by their text alone: division by zero, 'hidden_size'.
    plain = isinstance(error, OSError | ValueError | ImportError | RuntimeError)
    return text if plain and text else f"{type(error).__name__}: {text}".removesuffix(": ")


def _advice(error: Exception, name: str) -> str:
    text = str(error)
    if "trust_remote_code" in text:
        return "read that code, and if you trust it add --trust_remote_code"
    if isinstance(error, ImportError):
        return "install the package it names"
    if "connect" in text:
        return (
            f"check the name (there is no folder {name} here) and the connection, or download the "
            "model once and give its folder"
        )
    if "automatic conversion" in text:
        return (
            "check that the files are complete; experts that were quantized one by one can not be "
            "read: then give the unquantized model, and --quantization 4bit"
        )
    if "gated" in text or "not a local folder" in text:
        return "check the spelling; for a private or gated model log in with `hf auth login`"
    return "check that the files are complete and that this transformers knows the model"


def _locate(name: str) -> tuple[str, str | None]:
    """(folder or hub id, file name of a .gguf file in it)."""
    path = Path(name).expanduser()
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except OSError as error:
        shown = name if len(name) < 100 else f"{name[:100]}..."
        raise ModelError(
            f"{shown} can not be looked at.\n  got: {error.strerror}\n"
            "  do: check the path and its permissions"
        ) from error
    if is_file:
        if path.suffix != ".gguf":
            raise ModelError(
                f"{name} is a file.\n  expected: a hub id, a folder, or a .gguf file\n"
                "  do: give the folder that holds it"
            )
        return str(path.parent), path.name
    if is_folder:
        return str(path), None
    if name.startswith((".", "/", "~")) or not HUB_ID.fullmatch(name):
        raise ModelError(
            f"{name} does not exist.\n  expected: a hub id such as org/model, a folder, or a .gguf "
            "file\n  do: check the spelling of the path"
        )
    return name, None


def _absolute(name: str) -> str:
    path = Path(name).expanduser()
    return str(path.resolve()) if path.exists() else name


def _check_folder(name: str, path: Path) -> None:
    """Raise ModelError for a folder that is not a model's; a hub id passes."""
    if not path.is_dir() or (path / "config.json").is_file():
        return
    if (path / "adapter_config.json").is_file():
        do = "give the adapter's base model (base_model_name_or_path in adapter_config.json)"
    elif files := sorted(path.glob("*.gguf")):
        do = f"give the file: {files[0]}"
    else:
        do = "give a folder that save_pretrained wrote, or that was downloaded whole"
    raise ModelError(
        f"The folder {name} holds no config.json.\n  expected: a model's folder\n  do: {do}"
    )


def _check_causal(name: str, config: PretrainedConfig, settings: dict) -> None:
    remote = "AutoModelForCausalLM" in (settings.get("auto_map") or {})
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING and not remote:
        raise ModelError(
            f"{name} is of type {config.model_type}, which has no causal language model.\n"
            "  expected: a model that predicts the next token (Llama, Qwen, Gemma, GPT-2, ...)\n"
            "  do: choose a decoder model"
        )
