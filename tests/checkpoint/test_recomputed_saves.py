"""A04: what is saved does not tell whether it was checkpointed, and loads either way."""

from dataclasses import replace

import peft
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM

from ftrecipes.checkpoint.adapter import WEIGHTS, save_adapter, verify_adapter
from ftrecipes.checkpoint.full import save_full, verify_full
from ftrecipes.config.schema import LoraConfig, RunConfig, TrainConfig
from ftrecipes.config.sections import ActivationCheckpointingConfig
from ftrecipes.config.targets import read_target
from ftrecipes.model.adapters import add_adapters
from ftrecipes.model.initial import initialise_adapter
from ftrecipes.train.recomputing import recompute_as_asked
from tests import reference, tiny_models
from tests.checkpoint.alone import ALONE
from tests.model.adapting import FLOAT32, moved
from tests.recomputing import WAYS

ROWS = tiny_models.random_rows((7, 5, 9))
WITH_ADAPTER = ("full", "sublayers", "norm")


def adapter_of(folder=None) -> peft.PeftModel:
    train = TrainConfig(
        model_name="base",
        use_peft=True,
        from_peft_checkpoint=None if folder is None else str(folder),
    )
    config = RunConfig(train=train, lora=LoraConfig(r=4))
    model = add_adapters(tiny_models.build("llama"), config, FLOAT32)
    if folder is None:
        return moved(model)
    initialise_adapter(model, seed=0, folder=str(folder))
    return model


def loss_of(model: nn.Module, way: str | None = None) -> float:
    """As it is trained, with gradients on."""
    if way is not None:
        WAYS[way](model)
    return reference.backward_step(model.train(), ROWS)


@pytest.mark.parametrize("way", WITH_ADAPTER)
def test_an_adapter_loads_with_checkpointing_and_without(way, tmp_path):
    plain, again = adapter_of(), adapter_of()
    loss = loss_of(plain)
    assert loss_of(again, way) == loss
    for name, model in (("plain", plain), ("again", again)):
        (tmp_path / name).mkdir()
        save_adapter(model, tmp_path / name, base_name="base", **ALONE)
        verify_adapter(model, tmp_path / name, **ALONE)
    assert (tmp_path / "again" / WEIGHTS).read_bytes() == (
        tmp_path / "plain" / WEIGHTS
    ).read_bytes()
    for name, next_way in (("plain", way), ("again", None), ("again", way)):
        assert loss_of(adapter_of(tmp_path / name), next_way) == loss
    base = tiny_models.build("llama")
    strict = peft.PeftModel.from_pretrained(base, tmp_path / "again", is_trainable=True)
    assert loss_of(strict) == loss
    assert loss_of(adapter_of()) != pytest.approx(loss_of(tiny_models.build("llama")), rel=1e-3)


@pytest.mark.parametrize("settings", [{"init_lora_weights": "pissa"}, {"use_dora": True}, {}])
def test_an_adapter_whose_layers_are_checkpointed_themselves(settings, tmp_path):
    config = RunConfig(train=TrainConfig(model_name="base", use_peft=True), lora=LoraConfig(r=4))
    config = replace(config, lora=replace(config.lora, **settings))
    target = ActivationCheckpointingConfig("full", read_target("LoraLayer"))
    for checkpointed in (False, True):
        model = moved(add_adapters(tiny_models.build("llama"), config, FLOAT32))
        if checkpointed:
            asked = replace(config, activation_checkpointing=target)
            recompute_as_asked(asked, model, torch.device("cpu"))
        folder = tmp_path / str(checkpointed)
        folder.mkdir()
        save_adapter(model, folder, base_name="base", **ALONE)
        verify_adapter(model, folder, **ALONE)
    saved = [(tmp_path / str(made) / WEIGHTS).read_bytes() for made in (False, True)]
    assert saved[0] == saved[1]


@pytest.mark.parametrize("way", WITH_ADAPTER)
def test_a_whole_model_loads_with_checkpointing_and_without(way, tmp_path):
    plain, again = tiny_models.build("llama"), tiny_models.build("llama")
    loss = loss_of(plain)
    assert loss_of(again, way) == loss
    for name, model in (("plain", plain), ("again", again)):
        (tmp_path / name).mkdir()
        save_full(model, tmp_path / name, **ALONE)
        verify_full(model, tmp_path / name, **ALONE)
    for file in ("model.safetensors", "config.json"):
        files = [(tmp_path / name / file).read_bytes() for name in ("plain", "again")]
        assert files[0] == files[1]
    for name, next_way in (("plain", way), ("again", None), ("again", way)):
        loaded, told = AutoModelForCausalLM.from_pretrained(
            tmp_path / name, dtype=torch.float32, output_loading_info=True
        )
        assert not any(told.values())
        assert loss_of(loaded, next_way) == loss
