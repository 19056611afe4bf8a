"""Two ranks: A04, what is saved with checkpointing loads without it, and the other way round."""

from pathlib import Path

import torch.distributed as dist

from ftrecipes.checkpoint.adapter import WEIGHTS, save_adapter, verify_adapter
from ftrecipes.checkpoint.full import save_full, verify_full
from ftrecipes.config.schema import LoraConfig, RunConfig, TrainConfig
from ftrecipes.config.sections import ActivationCheckpointingConfig
from ftrecipes.model.attention import ROW_ATTENTION
from ftrecipes.model.forward import LossRoute, causal_lm, decoder_of
from ftrecipes.model.resolve import resolve_source
from ftrecipes.parallel.mesh import build_mesh
from ftrecipes.parallel.recompute import Recomputed
from ftrecipes.runtime.collectives import barrier
from ftrecipes.train.assemble import build_model
from tests import tiny_models
from tests.distributed.saving import shared
from tests.distributed.sharded import Cut, rows
from tests.distributed.worlds import this_world
from tests.model.loading import FLOAT32

ON = ActivationCheckpointingConfig("full")
OFF = ActivationCheckpointingConfig("none")


def opened(base: Path, method: ActivationCheckpointingConfig, **settings) -> Cut:
    """As a run with these settings builds it from the folder."""
    train = TrainConfig(model_name=str(base), enable_fsdp=True, seed=7, **settings)
    config = RunConfig(train=train, lora=LoraConfig(r=4), activation_checkpointing=method)
    world, source = this_world(), resolve_source(str(base), None, trust_remote_code=False)
    mesh = build_mesh(config.fsdp, world)
    model, engine = build_model(config, source, FLOAT32, world, mesh=mesh, tokenizer=None)
    assert any(isinstance(m, Recomputed) for m in model.modules()) == (method is ON)
    decoder_of(causal_lm(model)).set_attn_implementation(ROW_ATTENTION)
    calls = {"run": engine.run, "run_head": engine.run_head}
    return Cut(model.train(), engine, (), LossRoute(flat=True, head="chunked", reason="", **calls))


def trained(cutting: Cut) -> Cut:
    """Every number that is trained has moved."""
    for parameter in cutting.model.parameters():
        if parameter.requires_grad:
            cutting.engine.local(parameter.detach()).add_(0.01 * (1 + dist.get_rank()))
    return cutting


def base_of(folder: Path) -> Path:
    """Written by rank 0."""
    base = shared(folder, "base")
    if dist.get_rank() == 0:
        tiny_models.save_folder("llama", base)
    barrier(this_world())
    return base


def check_an_adapter(folder):
    """The same bytes, and the same loss and gradients once it is loaded."""
    out, lora = shared(folder, "adapters"), {"use_peft": True}
    base, world, losses = base_of(out), this_world(), []
    for name, method in (("with", ON), ("without", OFF)):
        cutting, made = trained(opened(base, method, **lora)), shared(out, name)
        save_adapter(cutting.model, made, base_name=str(base), engine=cutting.engine, world=world)
        verify_adapter(cutting.model, made, engine=cutting.engine, world=world)
        losses.append(cutting.gradients(rows()))
    assert (out / "with" / WEIGHTS).read_bytes() == (out / "without" / WEIGHTS).read_bytes()
    for name, method in (("with", OFF), ("without", ON)):
        again = opened(base, method, **lora, from_peft_checkpoint=str(out / name))
        losses.append(again.gradients(rows()))
    assert losses == [losses[0]] * 4


def check_a_whole_model(folder):
    out = shared(folder, "models")
    base, world, losses = base_of(out), this_world(), []
    for name, method in (("with", ON), ("without", OFF)):
        cutting, made = trained(opened(base, method)), shared(out, name)
        save_full(cutting.model, made, engine=cutting.engine, world=world)
        verify_full(cutting.model, made, engine=cutting.engine, world=world)
        losses.append(cutting.gradients(rows()))
    for file in ("model.safetensors", "config.json"):
        assert (out / "with" / file).read_bytes() == (out / "without" / file).read_bytes()
    for name, method in (("with", OFF), ("without", ON)):
        losses.append(opened(out / name, method).gradients(rows()))
    assert losses == [losses[0]] * 4
