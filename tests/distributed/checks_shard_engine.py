"""Two ranks: what the engine promises around the steps, and the precisions."""

import pytest
import torch
import torch.distributed as dist
from accelerate import init_empty_weights
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.distributed.tensor import DTensor

from ftrecipes.config.sections import FsdpConfig
from ftrecipes.model.adapters import canonical_name
from ftrecipes.model.forward import LossRoute, causal_lm
from ftrecipes.parallel.place import Places
from ftrecipes.parallel.wrap import blocks_of
from tests import reference, tiny_models
from tests.distributed.sharded import TOLERANCE, Case, Cut, compare, cut, rows

LORA = Case(recomputing=True)
FULL = Case(peft=())
BITS = Case(storage="uint8", recomputing=True)


def check_everything_is_cut_again_without_gradients(folder):
    for case in (FULL, BITS):
        cutting = cut(case)
        with torch.no_grad():
            loss = cutting.loss_sum(rows()).item() / reference.count_tokens(rows())
        assert _all_cut(cutting)
        torch.testing.assert_close(
            loss, reference.mean_loss(case.build(), rows()), rtol=TOLERANCE, atol=0
        )


def check_runs_inside_of_runs(folder):
    cutting, whole = cut(FULL), FULL.build()
    cutting.model.set_attn_implementation("eager")
    engine, ids = cutting.engine, torch.tensor([rows()[0][0]])
    logits = engine.run(lambda: engine.run(lambda: cutting.model(input_ids=ids).logits))
    logits.square().sum().backward()
    whole(input_ids=ids).logits.square().sum().backward()
    compare(cutting, {n: p.grad * 2 for n, p in whole.named_parameters()}, of="grad")
    assert _all_cut(cutting)


def check_the_models_own_head(folder):
    """Logits of the model's forward, whose root is the model itself: its hooks run twice."""
    cutting, whole = cut(FULL), FULL.build()
    route = LossRoute(flat=False, head="own", reason="", run=cutting.engine.run)
    cutting.model.set_attn_implementation("eager")
    reference.backward_step(whole, rows())
    Cut(cutting.model, cutting.engine, cutting.units, route).gradients(rows(), accumulation=2)
    compare(cutting, {n: p.grad for n, p in whole.named_parameters()}, of="grad")


def check_all_ranks_generate(folder):
    cutting, whole = cut(LORA), LORA.build()
    for model in (cutting.model, whole):
        causal_lm(model).set_attn_implementation("eager")
    prompt = {"input_ids": torch.tensor([[5, 6, 7]]), "max_new_tokens": 6, "do_sample": False}
    with torch.no_grad():
        expected = whole.eval().generate(**prompt)
        found = cutting.engine.run(lambda: cutting.model.eval().generate(**prompt))
    assert found.tolist() == expected.tolist()
    assert _all_cut(cutting)


def check_a_step_after_one_that_failed(folder):
    cutting, whole = cut(LORA), LORA.build()

    def fail(*_):
        raise ZeroDivisionError

    handle = blocks_of(cutting.units)[1].register_forward_hook(fail)
    with pytest.raises(ZeroDivisionError):
        cutting.loss_sum(rows())
    handle.remove()
    assert _all_cut(cutting)
    attention = causal_lm(cutting.model).model.layers[0].self_attn
    handle = attention.register_full_backward_pre_hook(fail)
    loss = cutting.loss_sum(rows())
    with pytest.raises(ZeroDivisionError):  # when some gradients of the block are there
        loss.backward()
    handle.remove()
    cutting.engine.settle()
    assert _all_cut(cutting)
    reference.backward_step(whole, rows())
    cutting.gradients(rows())
    compare(cutting, _gradients(whole), of="grad")


def check_what_is_gathered_between_forward_and_backward(folder):
    for strategy, gathered in (("FULL_SHARD", False), ("SHARD_GRAD_OP", True)):
        cutting = cut(Case(fsdp=FsdpConfig(sharding_strategy=strategy)))
        loss = cutting.loss_sum(rows())
        kinds = {
            unit.kind: not isinstance(next(unit.modules[0].parameters()), DTensor)
            for unit in cutting.units[:-1]
        }
        assert kinds == {"block": gathered, "embedding": gathered, "head": True}
        loss.backward()
        assert _all_cut(cutting)


def check_blocks_are_computed_twice(folder):
    """Once in the forward, once in the backward; random numbers are drawn as the first time."""
    kept, again = (cut(Case(dropout=0.3, recomputing=on)) for on in (False, True))
    counts = {}
    for name, block in again.model.named_modules():
        if type(block).__name__ == "LlamaDecoderLayer":
            block.self_attn.register_forward_pre_hook(
                lambda *_, name=name: counts.update({name: counts.get(name, 0) + 1})
            )
    for cutting in (kept, again):
        torch.manual_seed(dist.get_rank())
        cutting.gradients(rows())
    assert set(counts.values()) == {2}
    assert len(counts) == 2
    expected = {n: p.grad for n, p in kept.model.named_parameters() if p.grad is not None}
    for name, parameter in again.model.named_parameters():
        if parameter.requires_grad:
            grad = again.engine.local(parameter.grad)
            assert grad.equal(kept.engine.local(expected[canonical_name(name)]))


def check_values_put_into_a_model_on_meta(folder):
    """As real values that are cut: tied ones, uneven ones, those of the host with offloading."""
    for fsdp in (FsdpConfig(), FsdpConfig(cpu_offload=True)):
        case = Case("llama_tied", fsdp=fsdp, recomputing=True)
        whole = case.build()
        with init_empty_weights(include_buffers=False):
            hollow = tiny_models.build("llama_tied")
            settings = LoraConfig(r=4, target_modules=list(case.peft), task_type="CAUSAL_LM")
            hollow = get_peft_model(hollow, settings).train()
        hollow.tie_weights()
        cutting = cut(case, hollow)
        places = Places(hollow, cutting.engine)
        for name, value in whole.named_parameters():
            places.put_whole(name, value.data)
        assert not any(p.is_meta for _, p in hollow.named_parameters(remove_duplicate=False))
        reference.backward_step(whole, rows())
        cutting.gradients(rows(), accumulation=2)
        compare(cutting, _gradients(whole), of="grad")


def check_gradients_are_summed_once_a_step_and_in_float32(folder):
    """256 + 1 + 1 is 256 in bfloat16."""
    model = FULL.build().bfloat16().requires_grad_(False)
    model.model.norm.requires_grad_(True)
    cutting = cut(FULL, model)
    norm = cutting.model.model.norm
    assert cutting.engine.sums_once
    for left, factor in ((2, 256.0), (1, 1.0), (0, 1.0)):
        cutting.engine.accumulate(is_last=left == 0)
        cutting.engine.run(lambda: norm.weight.float().sum() * factor).backward()  # noqa: B023  called at once
        assert (norm.weight.grad is None) == (left > 0)
        assert _all_cut(cutting)
    assert set(cutting.whole(norm.weight.grad).tolist()) == {2 * 258.0}


def check_gradients_larger_than_shares_are_summed_as_they_come(folder):
    """All weights trained: whole in float32, their gradients would be twice both shares."""
    cutting = cut(FULL)
    norm = cutting.model.model.norm
    assert not cutting.engine.sums_once
    for factor in (256.0, 1.0, 1.0):
        cutting.engine.accumulate(is_last=False)
        cutting.engine.run(lambda: norm.weight.float().sum() * factor).backward()  # noqa: B023  called at once
        assert norm.weight.grad is not None
        assert _all_cut(cutting)
    assert set(cutting.whole(norm.weight.grad).tolist()) == {2 * 258.0}


def check_patterns_that_are_no_numbers_survive(folder):
    """Packed storage in bfloat16 has bytes of NaN, which must come back as they are."""
    whole, cutting = (build(Case(storage="bfloat16")) for build in (Case.build, cut))
    compared = 0
    for name, value in whole.named_parameters():
        if value.dtype == torch.bfloat16:
            found = cutting.whole(cutting.model.get_parameter(name))
            assert found.view(torch.uint8).equal(value.data.view(torch.uint8))
            compared += value.isnan().any().item()
    assert compared > 0, "no pattern of NaN"


def _all_cut(cutting: Cut) -> bool:
    return all(isinstance(parameter, DTensor) for parameter in cutting.model.parameters())


def _gradients(whole: nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.grad for n, p in whole.named_parameters() if p.grad is not None}
