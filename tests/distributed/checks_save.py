"""Adapters and whole models that are saved from shares are those that were trained."""

import json
from unittest import mock

import peft
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from ftrecipes.checkpoint import full
from ftrecipes.checkpoint.adapter import WEIGHTS, save_adapter, verify_adapter
from ftrecipes.checkpoint.full import save_full, verify_full
from ftrecipes.checkpoint.layout import live_tensors
from ftrecipes.config.sections import FsdpConfig
from ftrecipes.runtime.collectives import barrier
from tests import tiny_models
from tests.distributed.saving import (
    Alive,
    OwnLlama,
    assert_adapter_comes_back,
    assert_model_comes_back,
    errors,
    shared,
)
from tests.distributed.sharded import Case, cut
from tests.distributed.worlds import this_world

EVERYTHING = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def check_adapter_has_the_rows_of_every_rank(folder):
    """Case A02: rank-specific constants."""
    case, out, world = Case(recomputing=True), shared(folder, "constants"), this_world()
    cutting = cut(case)
    ranks = {"engine": cutting.engine, "world": world}
    for name, parameter in cutting.model.named_parameters():
        if "lora_" in name:
            cutting.engine.local(parameter.detach()).fill_(world.rank + 1)
    save_adapter(cutting.model, out, base_name="base", **ranks)
    verify_adapter(cutting.model, out, **ranks)
    file, built = load_file(out / WEIGHTS), case.build()
    assert file.keys() == peft.get_peft_model_state_dict(built).keys()
    for name, tensor in file.items():
        for rank, own in enumerate(cutting.engine.share.all_rows(len(tensor))):
            assert (tensor[own.start : own.stop] == rank + 1).all(), name
        assert not tensor.isnan().any()
    shapes = {n: t.shape for n, t in peft.get_peft_model_state_dict(built).items()}
    assert {name: tensor.shape for name, tensor in file.items()} == shapes


def check_adapters_come_back(folder):
    cases = {
        "everything": Case(peft=EVERYTHING, recomputing=True),
        "head": Case(peft=("q_proj", "lm_head")),
        "tied": Case("llama_tied", peft=("q_proj",), recomputing=True),
        "qlora": Case(storage="uint8", recomputing=True),
        "offloaded": Case(fsdp=FsdpConfig(cpu_offload=True)),
        "replicas": Case(fsdp=FsdpConfig(sharding_strategy="NO_SHARD")),
        "one replica": Case(
            fsdp=FsdpConfig(
                sharding_strategy="HYBRID_SHARD", sharding_group_size=dist.get_world_size()
            )
        ),
        "kept": Case(fsdp=FsdpConfig(sharding_strategy="SHARD_GRAD_OP")),
    }
    for name, case in cases.items():
        assert_adapter_comes_back(case, shared(folder, name))


def check_ia3_and_patterns_of_ranks_come_back(folder):
    settings = {
        "ia3": peft.IA3Config(
            target_modules=["k_proj", "down_proj"],
            feedforward_modules=["down_proj"],
            task_type="CAUSAL_LM",
        ),
        "patterns": peft.LoraConfig(
            target_modules=["q_proj", "down_proj"],
            rank_pattern={"down_proj": 5, "layers.1.self_attn.q_proj": 2},
            alpha_pattern={"down_proj": 3},
            bias="lora_only",
            task_type="CAUSAL_LM",
        ),
    }
    for name, wanted in settings.items():
        model = peft.get_peft_model(tiny_models.build("llama"), wanted)
        generator = torch.Generator().manual_seed(7)
        for parameter in filter(lambda p: p.requires_grad, model.parameters()):
            parameter.data = torch.randn(parameter.shape, generator=generator)
        expected = peft.get_peft_model_state_dict(model)
        cutting, out = cut(Case(recomputing=True), model), shared(folder, name)
        ranks = {"engine": cutting.engine, "world": this_world()}
        save_adapter(model, out, base_name="base", **ranks)
        verify_adapter(model, out, **ranks)
        file = load_file(out / WEIGHTS)
        assert file.keys() == expected.keys()
        assert all(torch.equal(file[key], expected[key]) for key in file)
        peft.PeftModel.from_pretrained(tiny_models.build("llama"), out)


def check_a_row_of_another_rank_that_differs_is_found(folder):
    world, out, cutting = this_world(), shared(folder, "differs"), cut(Case())
    ranks = {"engine": cutting.engine, "world": world}
    save_adapter(cutting.model, out, base_name="base", **ranks)
    if world.rank == 0:
        tensors = load_file(out / WEIGHTS)
        name = next(name for name in tensors if "q_proj.lora_B" in name)
        second = cutting.engine.share.all_rows(len(tensors[name]))[1]
        tensors[name][second.start].view(torch.int32)[0] ^= 1
        save_file(tensors, out / WEIGHTS)
    barrier(world)
    (text,) = errors(world, lambda: verify_adapter(cutting.model, out, **ranks))
    assert text.startswith("rank 1 on host host1: ")
    assert "q_proj.lora_B.weight: other values in the file" in text


def check_whole_models_come_back(folder):
    for family in ("llama", "llama_tied", "gpt2", "gemma2", "mixtral", "qwen3_moe"):
        case = Case(family, peft=(), recomputing=True)
        files = assert_model_comes_back(case, shared(folder, family), file_bytes=2**20)
        assert files == {"model.safetensors"}


def check_whole_models_come_back_in_many_files(folder):
    size = dist.get_world_size()
    for number, (family, fsdp) in enumerate(
        (
            ("llama", FsdpConfig(sharding_strategy="NO_SHARD")),
            ("llama", FsdpConfig(sharding_strategy="HYBRID_SHARD", sharding_group_size=size)),
            ("llama", FsdpConfig(cpu_offload=True)),
            ("mixtral", FsdpConfig()),
        )
    ):
        case, out = Case(family, peft=(), fsdp=fsdp), shared(folder, f"many{number}")
        assert len(assert_model_comes_back(case, out, file_bytes=20_000)) > 3


def check_rank_0_holds_one_file_at_a_time(folder):
    """The largest tensor of the Llama has 12288 bytes, the experts of a block have 73728."""
    world, first = this_world(), dist.get_rank() == 0
    for family, limit, piece in (("llama", 13_000, 12_288), ("mixtral", 30_000, 73_728)):
        cutting, out = cut(Case(family, peft=())), shared(folder, f"held-{family}")
        gather, convert = cutting.engine.gather, full._as_stored
        gathered, made = Alive(), Alive()

        def gather_noted(tensor, gather=gather, gathered=gathered):
            return gathered.note(gather(tensor))

        def convert_noted(*arguments, convert=convert, made=made):
            return {name: made.note(t) for name, t in convert(*arguments).items()}

        with (
            mock.patch.object(cutting.engine, "gather", gather_noted),
            mock.patch.object(full, "_as_stored", convert_noted),
        ):
            ranks = {"engine": cutting.engine, "world": world, "file_bytes": limit}
            save_full(cutting.model, out, **ranks)
        everything = sum(tensor.nbytes for tensor in live_tensors(cutting.model).values())
        assert 0 < gathered.peak <= max(limit if first else 0, piece) < everything / 2, family
        assert made.peak <= (limit + piece if family == "mixtral" else limit)


def check_a_replica_that_differs_is_found(folder):
    world, out = this_world(), shared(folder, "replica")
    cutting = cut(Case(peft=(), fsdp=FsdpConfig(sharding_strategy="NO_SHARD")))
    ranks = {"engine": cutting.engine, "world": world}
    save_full(cutting.model, out, **ranks)
    if world.rank == 1:
        cutting.engine.local(live_tensors(cutting.model)["model.norm.weight"].detach())[0] += 1
    (text,) = errors(world, lambda: verify_full(cutting.model, out, **ranks))
    assert text.startswith("rank 1 on host host1: ")
    assert "model.norm.weight: other values in the file" in text


def check_persistent_buffers_are_saved(folder):
    world, out = this_world(), shared(folder, "buffers")
    model = tiny_models.build("llama")
    model.model.layers[0].mlp.register_buffer("scale", torch.tensor([3.0, 4.0]))
    cutting = cut(Case(peft=(), recomputing=True), model)
    ranks = {"engine": cutting.engine, "world": world}
    save_full(model, out, **ranks)
    saved = load_file(out / "model.safetensors")["model.layers.0.mlp.scale"]
    assert torch.equal(saved, torch.tensor([3.0, 4.0]))
    barrier(world)


def check_code_of_a_model_is_saved_with_it(folder):
    """Sharding gives the model a class of torch's, whose code would be copied."""
    world, out = this_world(), shared(folder, "code")
    cutting = cut(Case(peft=()), OwnLlama(tiny_models.build("llama").config))
    ranks = {"engine": cutting.engine, "world": world}
    save_full(cutting.model, out, **ranks)
    verify_full(cutting.model, out, **ranks)
    settings = json.loads((out / "config.json").read_text())
    assert settings["auto_map"] == {"AutoModelForCausalLM": "saving.OwnLlama"}
    assert settings["architectures"] == ["OwnLlama"]
    assert "class OwnLlama" in (out / "saving.py").read_text()
    barrier(world)
