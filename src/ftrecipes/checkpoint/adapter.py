"""Save a PEFT adapter, and prove that the file holds every trained parameter."""

import copy
import re
from pathlib import Path

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file, save_file

from ftrecipes.checkpoint.verify import compare
from ftrecipes.model.rewritten import (
    initial_tensors,
    plain_settings,
    plain_tensors,
    trained_halves,
)

ADAPTER_NAME = "default"
WEIGHTS = "adapter_model.safetensors"
PROMPT = "prompt_embeddings"  # PEFT's name for what a prompt learning method has learned


def save_adapter(model: PeftModel, folder: Path, *, base_name: str) -> None:
    """Write adapter_model.safetensors and adapter_config.json, as PEFT reads them, into `folder`.

    `base_name` is where the base model was read from; PEFT loads it from there. An adapter whose
    initialisation rewrote the base is written for the base as it was. Rank 0 only.
    """
    tensors = {
        # copies: PEFT may train one weight under two names, and the format wants two
        name: tensor.detach().to("cpu", copy=True).contiguous()
        for name, tensor in plain_tensors(model, adapter_state(model)).items()
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    settings = copy.deepcopy(plain_settings(model.peft_config[ADAPTER_NAME]))
    settings.inference_mode, settings.base_model_name_or_path = True, base_name
    settings.save_pretrained(str(folder))


def adapter_state(model: PeftModel) -> dict[str, torch.Tensor]:
    """The adapter's tensors under the names PEFT gives them in a file.

    `save_embedding_layers=False`: the automatic choice would look the base model up on the hub, and
    rows of a resized embedding are in the adapter already.
    """
    return get_peft_model_state_dict(model, adapter_name=ADAPTER_NAME, save_embedding_layers=False)


def verify_adapter(model: PeftModel, folder: Path) -> None:
    """Read `folder` back and compare it with the live model: names, shapes, dtypes and bytes.

    Each parameter that was trained must be in the file, found by a name worked out here and not by
    PEFT. Raises CheckpointError naming the first differences.
    """
    saved, lost = trained_halves(model, load_file(folder / WEIGHTS))
    initial, trained = initial_tensors(model), _trained(model)
    trained |= {name: trained[name].to(torch.float32) for name in initial}
    compare(saved, trained=trained, known=adapter_state(model) | trained)
    if initial:
        compare(lost, trained=initial, known=initial)


def _trained(model: PeftModel) -> dict[str, torch.Tensor]:
    """What was trained, by its name in a file.

    A prefix made by a network is saved as what it makes, without the network.
    """
    trained = {
        name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    settings = model.peft_config[ADAPTER_NAME]
    if not settings.is_prompt_learning:
        return {file_name(name): parameter for name, parameter in trained.items()}
    encoder = f"prompt_encoder.{ADAPTER_NAME}."
    others = {name: p for name, p in trained.items() if not name.startswith(encoder)}
    with torch.no_grad():
        positions = torch.arange(settings.num_virtual_tokens, device=model.device)
        return others | {PROMPT: model.prompt_encoder[ADAPTER_NAME](positions)}


def file_name(parameter_name: str) -> str:
    """Name of a live parameter in an adapter file: without the adapter's own name."""
    name = re.sub(rf"(\.modules_to_save)?\.{ADAPTER_NAME}(?=\.|$)", "", parameter_name)
    # PEFT 0.21 writes the magnitudes of DoRA under the name they had before they were modules.
    return re.sub(r"(?<=\.lora_magnitude_vector)\.weight$", "", name)
