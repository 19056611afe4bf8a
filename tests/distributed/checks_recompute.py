"""Two ranks: on shares too, checkpointing changes no number and computes nothing a third time.

Without dropout the reference is one process that keeps its activations; its float32 sums come in
another order, as everywhere here. With dropout it is the same shares without checkpointing, whose
kernels run on the same numbers: equal means bit for bit.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from ftrecipes.config.sections import FsdpConfig
from ftrecipes.model.adapters import trainable_parameters
from ftrecipes.parallel.recompute import Contexts, Recomputed, recompute
from ftrecipes.parallel.selective import keeping_ops
from ftrecipes.parallel.wrap import blocks_of, lora_aware_wrap_policy
from tests import reference
from tests.distributed.sharded import TOLERANCE, Case, Cut, compare, cut, rows
from tests.recomputing import WAYS, Way, counted_forwards, expected_forwards

DROPOUT = 0.3
GRAD_OP = FsdpConfig(sharding_strategy="SHARD_GRAD_OP")
WHOLE = FsdpConfig(sharding_strategy="NO_SHARD")
EXPERTS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
MAIN = ("full", "sublayers", "selective", "offload")


def checkpointed(case: Case, way: Way) -> Cut:
    model = case.build()
    way(model)
    return cut(case, model)


def shares(cutting: Cut) -> dict[str, Tensor]:
    """This rank's rows of all gradients."""
    named = trainable_parameters(cutting.model)
    return {n: cutting.engine.local(p.grad) for n, p in named if p.grad is not None}


def step(cutting: Cut) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of two micro-batches a rank; each rank draws its own dropout."""
    torch.manual_seed(dist.get_rank())
    return cutting.gradients(rows(), accumulation=2), shares(cutting)


def assert_as_one_process(case: Case, *ways: str) -> None:
    """Loss, gradients and number of forwards."""
    whole = case.build()
    loss = reference.backward_step(whole, rows())
    expected = {name: p.grad for name, p in whole.named_parameters() if p.grad is not None}
    for way in ways:
        cutting = checkpointed(case, WAYS[way])
        with counted_forwards(cutting.model) as counts:
            found, _ = step(cutting)
        torch.testing.assert_close(found, loss, rtol=TOLERANCE, atol=0)
        compare(cutting, expected, of="grad")
        assert counts == expected_forwards(cutting.model, WAYS[way], of=2), way
        assert all(cutting.whole(p.grad).any() for _, p in trainable_parameters(cutting.model))
        assert all(isinstance(p, DTensor) for p in cutting.model.parameters())


def assert_as_kept(case: Case, *ways: str) -> None:
    """With dropout: loss and gradients are those of the same shares that keep all activations."""
    case = replace(case, dropout=DROPOUT)
    expected = step(cut(case))
    for way in ways:
        assert_equal(step(checkpointed(case, WAYS[way])), expected)


def assert_equal(found: tuple, expected: tuple) -> None:
    (loss, gradients), (expected_loss, theirs) = found, expected
    assert loss == expected_loss
    assert gradients.keys() == theirs.keys()
    assert [name for name in theirs if not gradients[name].equal(theirs[name])] == []
    assert any(gradient.any() for gradient in theirs.values())


def check_llama_lora(folder):
    assert_as_one_process(Case(), *WAYS)
    assert_as_kept(Case(), *WAYS)


def check_llama_full(folder):
    assert_as_one_process(Case(peft=()), *WAYS)
    assert_as_kept(Case(peft=()), *WAYS)


def check_qwen(folder):
    for case in (Case("qwen3"), Case("qwen2", peft=())):
        assert_as_one_process(case, *MAIN)
        assert_as_kept(case, *MAIN)


def check_gpt2(folder):
    for case in (Case("gpt2", peft=("c_attn", "c_fc")), Case("gpt2", peft=())):
        assert_as_one_process(case, *MAIN)
        assert_as_kept(case, *MAIN)


def check_experts(folder):
    for case in (Case("qwen3_moe", peft=("q_proj", "o_proj")), Case("qwen3_moe", peft=())):
        assert_as_one_process(case, *MAIN)
        assert_as_kept(case, *MAIN)


def check_adapted_experts(folder):
    """PEFT has no dropout on adapters of parameters."""
    for storage in (None, "uint8"):
        case = Case("qwen3_moe", parameters=EXPERTS, storage=storage)
        assert_as_one_process(case, *MAIN)


def check_qlora(folder):
    for storage in ("uint8", "bfloat16"):
        assert_as_one_process(Case(storage=storage), *MAIN)
        assert_as_kept(Case(storage=storage), *MAIN)


def check_shares_kept_for_the_backward(folder):
    for case in (Case(), Case(peft=()), Case(storage="uint8")):
        case = replace(case, fsdp=GRAD_OP)
        assert_as_one_process(case, *MAIN)
        assert_as_kept(case, *MAIN)


def check_steps_after_a_forward_that_was_given_up(folder):
    for case in (Case(), Case(fsdp=GRAD_OP), Case(storage="uint8")):
        for way in MAIN:
            cutting = checkpointed(replace(case, dropout=DROPOUT), WAYS[way])
            expected = step(cutting)
            cutting.loss_sum(rows())
            cutting.engine.settle()
            assert_equal(step(cutting), expected)


def check_whole_models_on_both_ranks(folder):
    """C06, with a frozen embedding: a reentrant checkpoint would have no gradient at all."""
    case = Case(fsdp=WHOLE)
    assert_as_one_process(case, *MAIN)
    assert_as_kept(case, *MAIN)


def check_shares_in_the_memory_of_the_host(folder):
    assert_as_one_process(Case(storage="uint8", fsdp=FsdpConfig(cpu_offload=True)), *MAIN)


def _inside(model: nn.Module) -> list[nn.Module]:
    wrappers = [module for module in model.modules() if isinstance(module, Recomputed)]
    return [part for wrapper in wrappers for part in list(wrapper.modules())[1:]]


def check_no_unit_is_inside_of_what_is_computed_again(folder):
    for way in WAYS.values():
        inside = _inside(checkpointed(Case(), way).model)
        assert inside
        assert not [module for module in inside if isinstance(module, FSDPModule)]


def _cut_inside(contexts: Contexts) -> Cut:
    """With a unit of its own for each matrix of the blocks."""
    model = Case().build()
    blocks = blocks_of(lora_aware_wrap_policy(model))
    recompute(model, blocks, contexts=contexts)
    for matrix in [part for block in blocks for part in block.modules()]:
        if isinstance(matrix, nn.Linear):
            fully_shard(matrix)
            matrix.set_gradient_divide_factor(1.0)
            matrix.set_force_sum_reduction_for_comms(True)
    assert [module for module in _inside(model) if isinstance(module, FSDPModule)]
    return cut(Case(), model)


def check_why_no_unit_is_inside(folder):
    """torch 2.13 counts what FSDP tells the profiler, which is not the same the second time."""
    of_torch = partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    with pytest.raises(RuntimeError, match="not found in storage"):
        step(_cut_inside(of_torch))


def check_a_unit_inside_would_change_nothing(folder):
    whole = Case().build()
    reference.backward_step(whole, rows())
    cutting = _cut_inside(keeping_ops())
    step(cutting)
    compare(
        cutting, {n: p.grad for n, p in whole.named_parameters() if p.grad is not None}, of="grad"
    )
