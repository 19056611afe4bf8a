"""The model without weights, as it stands before each rank reads its share of them."""

import copy

import torch
from accelerate import init_empty_weights
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PretrainedConfig, PreTrainedModel

from ftrecipes.config.precision import Precision
from ftrecipes.config.schema import RunConfig
from ftrecipes.config.stored import BITSANDBYTES
from ftrecipes.model.donor import Donor
from ftrecipes.model.load import reading_settings
from ftrecipes.model.packed import packed_parameters
from ftrecipes.model.quantize import finish_quantization
from ftrecipes.model.resolve import ModelSource, loading

_NOWHERE = {"": "meta"}


def build_skeleton(source: ModelSource, config: RunConfig, precision: Precision) -> PreTrainedModel:
    """What `load_model` gives, with parameters on the meta device, and buffers on the CPU.

    Names, shapes, dtypes, modules and settings are the same. Buffers have their values, but for
    those that the files hold too, whose values are read later. A packed weight is a `Params4bit`
    [n, 1] without statistics. Nothing is read but the small files, and no rank waits for another.
    Raises ModelError as `load_model` does for what shapes tell.
    """
    assert config.quantization.method != "8bit", "8-bit weights are not sharded"
    settings = reading_settings(source, config, precision)
    dtype = getattr(torch, precision.base)
    with loading(source.name):
        plain = _plain_model(source, dtype)
        model = type(plain).from_pretrained(
            None,
            config=_config(source, plain),
            state_dict=_read(plain, dtype),
            quantization_config=settings if isinstance(settings, BitsAndBytesConfig) else None,
            dtype=dtype,
            device_map=_NOWHERE,
        )
        _name(model, source)
        for name, _ in [*model.named_buffers()]:
            _set(model, name, plain.get_buffer(name))
    finish_quantization(model, config.quantization, precision)
    for packed in packed_parameters(model).values():
        holder = packed.module if isinstance(packed.module, nn.Linear) else None
        packed.module.register_parameter(packed.name, packed.empty(holder))
    return model


def _plain_model(source: ModelSource, dtype: torch.dtype) -> PreTrainedModel:
    """Parameters on meta; buffers as from_pretrained computes them, on the CPU for any device."""
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(
            copy.deepcopy(source.config),
            trust_remote_code=source.trust_remote_code,
            dtype=dtype,
        )
    # once more, because from_config computed them in the dtype of the weights: the sines of GPT-J
    # differ (transformers 5.24, modeling_utils.py, _initialize_missing_keys)
    for module in model.modules():
        module._is_hf_initialized = False
    model.initialize_weights()
    return model


def _read(plain: PreTrainedModel, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """What files would hold: of tied weights one, or they would not be tied."""
    donor = Donor(plain, transforms=[], quantizer=None, dtype=dtype)
    return {
        name: tensor.to("meta", donor.dtype_of(name))
        for name, tensor in plain.state_dict().items()
        if name not in plain.all_tied_weights_keys
    }


def _config(source: ModelSource, plain: PreTrainedModel) -> PretrainedConfig:
    """Without the quantization of files that are dequantized while they are read."""
    config = copy.deepcopy(plain.config)
    if source.stored is None or source.stored.method == BITSANDBYTES:
        return config
    for part in (config, config.get_text_config()):
        if "quantization_config" in vars(part):
            del part.quantization_config
    return config


def _name(model: PreTrainedModel, source: ModelSource) -> None:
    """What from_pretrained takes from the folder beside the weights."""
    model.name_or_path = model.config.name_or_path = source.path
    if not model.can_generate() or source.gguf_file is not None:
        return
    model.adjust_generation_fn(
        *(None, True, None, source.path),
        cache_dir=None,
        force_download=False,
        proxies=None,
        local_files_only=False,
        token=None,
        revision=None,
        subfolder="",
        trust_remote_code=source.trust_remote_code,
    )


def _set(model: nn.Module, name: str, value: torch.Tensor) -> None:
    path, _, last = name.rpartition(".")
    setattr(model.get_submodule(path), last, value)
