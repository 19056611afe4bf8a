"""Read a model's weights: in the dtype of the run, on its device, quantized as asked."""

import copy
from collections.abc import Iterable, Mapping

import torch
from transformers import AutoModelForCausalLM, GgufConfig, PreTrainedModel
from transformers.utils.quantization_config import QuantizationConfigMixin

from ftrecipes.config.errors import ModelError
from ftrecipes.config.precision import Precision
from ftrecipes.config.schema import RunConfig
from ftrecipes.config.stored import BITSANDBYTES
from ftrecipes.model.donor import Donor, donor_of
from ftrecipes.model.packed import packed_sizes
from ftrecipes.model.quantize import bitsandbytes_config, finish_quantization, stored_config
from ftrecipes.model.resolve import ModelSource, loading
from ftrecipes.runtime import log


def load_model(
    source: ModelSource, config: RunConfig, precision: Precision, device: torch.device
) -> PreTrainedModel:
    """The model with weights in `precision.base`, on `device`, quantized as `config` says.

    `config` is one that `settle_quantization` has gone over. Weights are quantized one by one as
    they are read: the device never holds the model at full size. In full fine-tuning
    `precision.base` is the dtype of the trained weights. Nothing is frozen yet. `use_cache` is left
    as the model's config has it (it is saved with the model): every forward of ours passes
    use_cache=False. Raises ModelError when weights are missing or can not be read, for experts that
    4-bit can not take, and for 4-bit or 8-bit on a .gguf file.
    """
    quantization = reading_settings(source, config, precision)
    with loading(source.name):
        model, report = AutoModelForCausalLM.from_pretrained(
            source.path,
            config=source.config,
            gguf_file=source.gguf_file,
            trust_remote_code=source.trust_remote_code,
            quantization_config=quantization,
            dtype=getattr(torch, precision.base),
            device_map={"": str(device)},
            output_loading_info=True,
        )
    check_complete(source, report)
    finish_quantization(model, config.quantization, precision)
    if source.stored is not None and source.stored.method == BITSANDBYTES:
        _cast_unpacked(model, donor_of(source, getattr(torch, precision.base), quantizer=None))
    return model


def _cast_unpacked(model: PreTrainedModel, donor: Donor) -> None:
    """transformers 5.24 leaves what is not packed in the dtype of files with packed weights."""
    packed, known = packed_sizes(model), donor.model.state_dict()
    for name, parameter in model.named_parameters():
        if name in known and name not in packed:
            parameter.data = parameter.data.to(donor.dtype_of(name))


def reading_settings(
    source: ModelSource, config: RunConfig, precision: Precision
) -> QuantizationConfigMixin | None:
    """How from_pretrained (de)quantizes; None = as plain weights, or as their config says.

    Raises ModelError for what can not be read so.
    """
    _check_type(source, config.quantization.method)
    quantization = bitsandbytes_config(config.quantization, precision)
    if source.stored is not None:
        quantization = stored_config(source.stored)
    if source.gguf_file is None:
        return quantization
    if quantization is not None:
        raise ModelError(
            f"--quantization {config.quantization.method}: not yet on a .gguf file.\n"
            f"  got: {source.name}\n  expected: a hub id or a folder with safetensors\n"
            "  do: leave --quantization out, or make a folder of the file once: load it with "
            "transformers (from_pretrained, gguf_file=...) and call save_pretrained"
        )
    return GgufConfig(dequantize=True)


def sketch_model(source: ModelSource) -> PreTrainedModel:
    """The model without weights, on the meta device: its names and shapes, in next to no memory.

    Its config is a copy: enlarging the embeddings of a sketch changes it.
    """
    with loading(source.name), torch.device("meta"):
        return AutoModelForCausalLM.from_config(
            copy.deepcopy(source.config), trust_remote_code=source.trust_remote_code
        )


def _check_type(source: ModelSource, method: str) -> None:
    """transformers 5.24's Rwkv divides its weights in evaluation, and packs them anew as fp4."""
    if method == "4bit" and source.config.model_type == "rwkv":
        raise ModelError(
            f"4-bit weights do not work with {source.name}: its type rescales them in evaluation.\n"
            "  got: model_type rwkv\n  do: use --quantization 8bit, or leave it out"
        )


def check_complete(source: ModelSource, report: Mapping[str, Iterable]) -> None:
    """Raise ModelError for weights that are missing or of another shape; warn of those left over.

    `report` is what from_pretrained calls its loading info: keys that are missing, unexpected and
    mismatched. transformers fills what a checkpoint lacks with random numbers.
    Too much may be as it should (the vision part of a text model, layers for another head), or the
    half of a model whose config says too few layers: a person can tell.
    """
    unused = sorted(map(str, report["unexpected_keys"]))
    if unused:
        log.warning(
            f"{source.name} holds {len(unused)} weights that its config has no place for, and they "
            f"are left out: {_shown(unused)}"
        )
    lacking = sorted(report["missing_keys"]) + sorted(map(str, report["mismatched_keys"]))
    if lacking:
        raise ModelError(
            f"{source.name} lacks weights of a causal language model; they would be random.\n"
            f"  missing or of another shape: {_shown(lacking)}\n"
            "  do: give a checkpoint that was saved from a causal language model"
        )


def _shown(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")
