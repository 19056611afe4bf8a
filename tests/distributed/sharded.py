"""One step of a tiny model, on shares of several ranks and (the reference) in one process.

The reference is `tests.reference`: whole model, row by row, plain torch. Only the sharded side uses
the project's own loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import bitsandbytes as bnb
import peft
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ftrecipes.config.schema import QuantizationConfig
from ftrecipes.config.sections import FsdpConfig
from ftrecipes.model.adapters import canonical_name
from ftrecipes.model.attention import ROW_ATTENTION
from ftrecipes.model.experts import adapt_packed, expert_weights, open_packed
from ftrecipes.model.forward import LossRoute, causal_lm, decoder_of
from ftrecipes.model.packed import packing_of
from ftrecipes.model.quantize import DequantizedLinear4bit
from ftrecipes.parallel.engine import Sharded
from ftrecipes.parallel.mesh import build_mesh
from ftrecipes.parallel.recompute import recompute
from ftrecipes.parallel.shard import shard
from ftrecipes.parallel.wrap import Unit, blocks_of, lora_aware_wrap_policy
from tests import reference, tiny_families, tiny_models
from tests.distributed.worlds import this_world

MAX_NORM, LR = 0.1, 0.5
# float32 sums in another order: of rows, of ranks, of chunks of the head
TOLERANCE = 1e-5
LENGTHS = (7, 5, 9, 3, 8, 6, 4, 10, 5, 7, 6, 11)


@dataclass(frozen=True)
class Case:
    """A tiny model and how it is trained. `storage`: of 4-bit weights; None = not quantized.
    `dropout`: of adapters, and of the model in all its places."""

    family: str = "llama"
    peft: tuple[str, ...] = ("q_proj", "v_proj", "down_proj")
    parameters: tuple[str, ...] = ()
    storage: str | None = None
    recomputing: bool = False
    dropout: float = 0.0
    fsdp: FsdpConfig = field(default_factory=FsdpConfig)

    def build(self) -> nn.Module:
        """The same model each time, in training mode; without `peft` all of it is trained."""
        known = self.family in tiny_models.FAMILIES
        model = (
            tiny_models.build(self.family, dropout=self.dropout)
            if known
            else tiny_families.build(self.family)
        )
        if self.storage is not None:
            _quantize(model, self.storage)
        if self.peft or self.parameters:
            settings = peft.LoraConfig(
                r=4,
                target_modules=list(self.peft),
                target_parameters=list(self.parameters) or None,
                lora_dropout=self.dropout,
                task_type="CAUSAL_LM",
            )
            model = peft.get_peft_model(model, settings)
            adapt_packed(model)
            generator = torch.Generator().manual_seed(1)
            for name, parameter in model.named_parameters():
                if "lora_" in name:
                    parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
        return model.train()


@dataclass(frozen=True)
class Cut:
    """A sharded model with its engine."""

    model: nn.Module
    engine: Sharded
    units: tuple[Unit, ...]
    route: LossRoute

    def whole(self, tensor: Tensor) -> Tensor:
        return self.engine.gather(tensor.detach())

    def loss_sum(self, rows: Sequence[reference.Row]) -> Tensor:
        """Of rows laid end to end; without any, of a row that has no label (0 with a graph)."""
        rows = rows or [([5, 6], [-100, -100])]
        ids = torch.tensor([token for row, _ in rows for token in row])
        labels = [label for _, own in rows for label in (-100, *own[1:])]
        lengths = tuple(len(row) for row, _ in rows)
        return self.route.loss_sum(self.model, ids, torch.tensor(labels), lengths)

    def gradients(self, rows: Sequence[reference.Row], *, accumulation: int = 1) -> float:
        """As reference.backward_step, every rank with its own part of `rows`."""
        self.model.zero_grad(set_to_none=True)
        own = rows[dist.get_rank() :: dist.get_world_size()]
        total, tokens = torch.zeros(()), reference.count_tokens(rows)
        for part in range(accumulation):
            self.engine.accumulate(part == accumulation - 1)
            loss = self.loss_sum(own[part::accumulation])
            (loss / tokens).backward()
            total += loss.detach()
        return self.engine.sum(total).item() / tokens

    def update(self) -> float:
        """Clip to MAX_NORM, one SGD step; returns the norm before."""
        trained = [p for p in self.model.parameters() if p.grad is not None]
        squares = sum(self.engine.local(p.grad).square().sum() for p in trained)
        norm = self.engine.sum(squares * self.engine.squares_weight).sqrt()
        for parameter in trained:
            self.engine.local(parameter.grad).mul_(min(1.0, MAX_NORM / norm.item()))
        torch.optim.SGD(trained, lr=LR).step()
        return norm.item()


def cut(case: Case, model: nn.Module | None = None, *, compute: torch.dtype | None = None) -> Cut:
    """Shard a case's model (or one of the same kind) over all ranks."""
    model = case.build() if model is None else model
    if case.recomputing:
        recompute(model, blocks_of(lora_aware_wrap_policy(model)))
    units = lora_aware_wrap_policy(model)
    mesh = build_mesh(case.fsdp, replace(this_world(), local_size=2))
    engine = shard(model, units, mesh=mesh, fsdp=case.fsdp, compute=compute)
    decoder_of(causal_lm(model)).set_attn_implementation(ROW_ATTENTION)
    calls = {"run": engine.run, "run_head": engine.run_head}
    route = LossRoute(flat=True, head="chunked", reason="", **calls)
    return Cut(model, engine, units, route)


def rows(count: int = len(LENGTHS)) -> list[reference.Row]:
    return tiny_models.random_rows(LENGTHS[:count])


def assert_steps_equal(case: Case, *, accumulation: int, num_rows: int = len(LENGTHS)) -> None:
    """Loss, gradients, norm and the parameters after a clipped step are those of one process."""
    whole, cutting = case.build(), cut(case)
    data = rows(num_rows)
    loss = reference.backward_step(whole, data)
    got = cutting.gradients(data, accumulation=accumulation)
    torch.testing.assert_close(got, loss, rtol=TOLERANCE, atol=0)
    assert all(isinstance(p, DTensor) for p in cutting.model.parameters())
    trained = {name: p for name, p in whole.named_parameters() if p.grad is not None}
    compare(cutting, {name: p.grad for name, p in trained.items()}, of="grad")
    norm = nn.utils.clip_grad_norm_(trained.values(), MAX_NORM)
    torch.optim.SGD(trained.values(), lr=LR).step()
    torch.testing.assert_close(cutting.update(), norm.item(), rtol=TOLERANCE, atol=0)
    assert norm > MAX_NORM, "nothing was clipped"
    compare(cutting, dict(trained), of="data")


def compare(cutting: Cut, expected: dict[str, Tensor], *, of: str) -> None:
    """Parameters or gradients (`of`) of the sharded model, whole, against those expected."""
    found = {canonical_name(n): p for n, p in cutting.model.named_parameters() if p.requires_grad}
    having = {name for name, p in found.items() if p.grad is not None}
    assert having == set(expected)
    assert having
    for name, value in expected.items():
        tensor = cutting.whole(getattr(found[name], of))
        error = (tensor - value).abs().max() / value.abs().max().clamp(min=1e-6)
        assert error < TOLERANCE, f"{of} of {name}: {error:.1e}"


def _quantize(model: nn.Module, storage: str) -> None:
    """4-bit linear layers and experts, as load_model makes them, but the head."""
    config = QuantizationConfig(method="4bit", quant_storage=storage)
    dtype, head = getattr(torch, storage), model.get_output_embeddings()
    settings = {"quant_type": "nf4", "compress_statistics": True, "quant_storage": dtype}
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and module is not head:
            layer = DequantizedLinear4bit(
                *(module.in_features, module.out_features, module.bias is not None),
                compute_dtype=torch.float32,
                **settings,
            )
            layer.load_state_dict(module.state_dict())
            layer = layer.to("cpu")
            shape = module.weight.shape
            layer.packings = {"weight": packing_of(layer.weight, config, shape=shape)}
            model.set_submodule(name, layer)
        for key in expert_weights(module):
            packed = bnb.nn.Params4bit(getattr(module, key).data, requires_grad=False, **settings)
            module.register_parameter(key, packed.to("cpu"))
    open_packed(model, config, torch.float32)
