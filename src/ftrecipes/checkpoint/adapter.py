"""Save a PEFT adapter, and prove that the file holds every trained parameter."""

import copy
import re
from pathlib import Path

import torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file, save_file

from ftrecipes.checkpoint.together import all_do, first_does
from ftrecipes.checkpoint.verify import compare, refuse
from ftrecipes.model.module_names import canonical_name, name_for_peft
from ftrecipes.model.rewritten import (
    initial_tensors,
    plain_settings,
    plain_tensors,
    trained_halves,
)
from ftrecipes.parallel.engine import Engine
from ftrecipes.runtime.world import World

ADAPTER_NAME = "default"
WEIGHTS = "adapter_model.safetensors"
PROMPT = "prompt_embeddings"  # PEFT's name for what a prompt learning method has learned


def save_adapter(
    model: PeftModel, folder: Path, *, base_name: str, engine: Engine, world: World
) -> None:
    """Write adapter_model.safetensors and adapter_config.json, as PEFT reads them, into `folder`.

    `base_name` is where the base model was read from; PEFT loads it from there. An adapter whose
    initialisation rewrote the base is written for the base as it was. Called by all ranks, which
    gather one tensor at a time; rank 0 keeps them and writes, and its failure is raised on all.
    """
    engine.settle()
    tensors = {}
    for name, tensor in plain_tensors(model, adapter_state(model)).items():
        whole = engine.gather(tensor.detach())
        if world.rank == 0:
            # copies: PEFT may train one weight under two names, and the format wants two
            tensors[name] = whole.to("cpu", copy=True).contiguous()

    def write() -> None:
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        settings = copy.deepcopy(plain_settings(model.peft_config[ADAPTER_NAME]))
        settings.inference_mode, settings.base_model_name_or_path = True, base_name
        settings.save_pretrained(str(folder))

    first_does(write, world)


def adapter_state(model: PeftModel) -> dict[str, torch.Tensor]:
    """The adapter's tensors, or this rank's shares of them, under PEFT's names for a file.

    `save_embedding_layers=False`: the automatic choice would look the base model up on the hub, and
    rows of a resized embedding are in the adapter already.
    """
    # PEFT 0.21 looks up modules that are trained whole by where they are, and model.state_dict()
    # leaves out what wraps a recomputed module: both go by one spelling here, and lose it after.
    live = None
    if not model.peft_config[ADAPTER_NAME].is_prompt_learning:
        parameters = model.named_parameters(remove_duplicate=False)
        live = {name_for_peft(name): parameter for name, parameter in parameters}
    state = get_peft_model_state_dict(
        model, live, adapter_name=ADAPTER_NAME, save_embedding_layers=False
    )
    return {canonical_name(name): tensor for name, tensor in state.items()}


def verify_adapter(model: PeftModel, folder: Path, *, engine: Engine, world: World) -> None:
    """Read `folder` back and compare it with the live model: names, shapes, dtypes and bytes.

    Each parameter that was trained must be in the file, found by a name worked out here and not by
    PEFT. Called by all ranks: each compares the rows that it holds. Raises CheckpointError, on all
    ranks, naming the first differences.
    """
    engine.settle()

    def check() -> None:
        saved, lost = trained_halves(model, load_file(folder / WEIGHTS))
        initial, trained = initial_tensors(model), _trained(model)
        trained |= {name: trained[name].to(torch.float32) for name in initial}
        known = adapter_state(model) | trained
        if not trained:
            refuse(["the model has no trainable parameter"])
        compare(saved, trained=trained, known=known, engine=engine)
        if initial:
            compare(lost, trained=initial, known=initial, engine=engine)

    all_do(check, world)


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
    """Name of a live parameter in an adapter file: without wrappers and the adapter's own name."""
    name = canonical_name(parameter_name)
    name = re.sub(rf"(\.modules_to_save)?\.{ADAPTER_NAME}(?=\.|$)", "", name)
    # PEFT 0.21 writes the magnitudes of DoRA under the name they had before they were modules.
    return re.sub(r"(?<=\.lora_magnitude_vector)\.weight$", "", name)
