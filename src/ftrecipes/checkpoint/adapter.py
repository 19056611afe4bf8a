"""Save a PEFT adapter, and prove that the file holds every trained parameter."""

import re
from pathlib import Path

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file, save_file

from ftrecipes.checkpoint.verify import compare

ADAPTER_NAME = "default"
WEIGHTS = "adapter_model.safetensors"


def save_adapter(model: PeftModel, folder: Path, *, base_name: str) -> None:
    """Write adapter_model.safetensors and adapter_config.json, as PEFT reads them, into `folder`.

    `base_name` is where the base model was read from; PEFT loads it from there. Rank 0 only.
    """
    tensors = {
        name: tensor.detach().to("cpu").contiguous()
        for name, tensor in adapter_state(model).items()
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    settings = model.peft_config[ADAPTER_NAME]
    while_training = (settings.inference_mode, settings.base_model_name_or_path)
    settings.inference_mode, settings.base_model_name_or_path = True, base_name
    settings.save_pretrained(str(folder))
    settings.inference_mode, settings.base_model_name_or_path = while_training


def adapter_state(model: PeftModel) -> dict[str, torch.Tensor]:
    """The adapter's tensors under the names PEFT gives them in a file.

    `save_embedding_layers=False`: the automatic choice would look the base model up on the hub, and
    no vocabulary is resized here.
    """
    return get_peft_model_state_dict(model, adapter_name=ADAPTER_NAME, save_embedding_layers=False)


def verify_adapter(model: PeftModel, folder: Path) -> None:
    """Read `folder` back and compare it with the live model: names, shapes, dtypes and bytes.

    Each parameter that was trained must be in the file, found by a name worked out here and not by
    PEFT. Raises CheckpointError naming the first differences.
    """
    trained = {
        file_name(name): parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    known = adapter_state(model) | trained
    compare(load_file(folder / WEIGHTS), trained=trained, known=known)


def file_name(parameter_name: str) -> str:
    """Name of a live parameter in an adapter file: without the adapter's own name."""
    name = re.sub(rf"(\.modules_to_save)?\.{ADAPTER_NAME}(?=\.|$)", "", parameter_name)
    # PEFT 0.21 writes the magnitudes of DoRA under the name they had before they were modules.
    return re.sub(r"(?<=\.lora_magnitude_vector)\.weight$", "", name)
