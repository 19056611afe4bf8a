"""Saving from the shares of several ranks, compared with one process that has the whole model."""

import json
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import peft
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from ftrecipes.checkpoint.adapter import WEIGHTS, save_adapter, verify_adapter
from ftrecipes.checkpoint.full import save_full, verify_full
from ftrecipes.config.errors import CheckpointError
from ftrecipes.model.module_names import canonical_name
from ftrecipes.runtime.collectives import barrier, gather_objects
from ftrecipes.runtime.world import World
from tests.distributed.sharded import Case, Cut, cut, rows
from tests.distributed.worlds import this_world
from tests.reference import row_logits

IDS = [5, 9, 3, 17, 40, 8]


class OwnLlama(LlamaForCausalLM):
    """A class whose code travels with the model, as that of a model with `trust_remote_code`."""

    _auto_class = "AutoModelForCausalLM"


def shared(folder: Path, name: str) -> Path:
    """A new folder inside `folder`, the same on all ranks."""
    made = folder / name
    if dist.get_rank() == 0:
        made.mkdir()
    barrier(this_world())
    return made


def trained(case: Case) -> Cut:
    """A sharded model after a step, whose root and head are gathered with values before it."""
    cutting = cut(case)
    shares = [p for p in cutting.model.parameters() if p.requires_grad]
    cutting.gradients(rows())
    cutting.update()
    cutting.loss_sum(rows())
    with torch.no_grad():
        for parameter in shares:
            cutting.engine.local(parameter).add_(0.01)
    return cutting


def twin(cutting: Cut, case: Case) -> nn.Module:
    """The live model of the ranks, in one process."""
    cutting.engine.settle()
    whole = {canonical_name(n): cutting.whole(p) for n, p in cutting.model.named_parameters()}
    model = case.build()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.is_floating_point() and parameter.shape == whole[name].shape:
                parameter.copy_(whole[name])
    return model.eval()


def errors(world: World, action: Callable[[], object]) -> set[str]:
    """The messages of a CheckpointError that every rank raises."""
    with pytest.raises(CheckpointError) as caught:
        action()
    return set(gather_objects(str(caught.value), world))


def assert_adapter_comes_back(case: Case, out: Path) -> None:
    world, cutting = this_world(), trained(case)
    ranks = {"engine": cutting.engine, "world": world}
    save_adapter(cutting.model, out, base_name="base", **ranks)
    verify_adapter(cutting.model, out, **ranks)
    live = twin(cutting, case)
    if world.rank == 0:
        file = load_file(out / WEIGHTS)
        assert all(tensor.any() for name, tensor in file.items() if "lora_B" in name)
        assert not [name for name in file if "wrapped" in name or "_orig_mod" in name]
        base = replace(case, peft=(), parameters=()).build().eval()
        with torch.no_grad():
            before = row_logits(base, IDS)
            again = peft.PeftModel.from_pretrained(base, out).eval()
            assert torch.equal(row_logits(again, IDS), row_logits(live, IDS))
            assert (row_logits(live, IDS) - before).abs().max() > 0.01
    barrier(world)


def assert_model_comes_back(case: Case, out: Path, *, file_bytes: int) -> set[str]:
    """Names of the files; compared with what transformers writes of the same model at once."""
    world, cutting = this_world(), trained(case)
    ranks = {"engine": cutting.engine, "world": world, "file_bytes": file_bytes}
    save_full(cutting.model, out, **ranks)
    verify_full(cutting.model, out, **ranks)
    live = twin(cutting, case)
    if world.rank == 0:
        at_once = out.with_name(f"{out.name}-at-once")
        live.save_pretrained(at_once)
        expected = load_file(at_once / "model.safetensors")
        files = sorted(out.glob("*.safetensors"))
        found = {name: tensor for file in files for name, tensor in load_file(file).items()}
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in found)
        for name in ("config.json", "generation_config.json"):
            assert (out / name).read_text() == (at_once / name).read_text()
        again = AutoModelForCausalLM.from_pretrained(out, dtype="auto").eval()
        for name, parameter in live.named_parameters():
            assert torch.equal(again.get_parameter(name), parameter), name
        with torch.no_grad():
            assert torch.equal(row_logits(again, IDS), row_logits(live, IDS))
        if len(files) > 1:
            index = json.loads((out / "model.safetensors.index.json").read_text())
            assert index["weight_map"].keys() == expected.keys()
            assert index["metadata"]["total_size"] == sum(t.nbytes for t in expected.values())
    barrier(world)
    return {path.name for path in out.glob("*.safetensors")}


class Alive:
    """Bytes of tensors that something still refers to."""

    def __init__(self):
        self._noted: dict[int, weakref.ref] = {}
        self.peak = 0

    def note(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count this one too."""
        self._noted[id(tensor)] = weakref.ref(tensor)
        found = [noted() for noted in self._noted.values()]
        storages = [tensor.untyped_storage() for tensor in found if tensor is not None]
        self.peak = max(self.peak, sum({s.data_ptr(): s.nbytes() for s in storages}.values()))
        return tensor
