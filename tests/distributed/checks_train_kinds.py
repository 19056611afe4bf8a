"""Training on the shares of two ranks equals one process: kinds of routes, precisions, reports."""

from dataclasses import replace

import torch
import torch.distributed as dist

from ftrecipes.config.sections import FsdpConfig
from ftrecipes.data.prompts import Prompt
from ftrecipes.model.forward import causal_lm
from ftrecipes.report.memory import host_memory
from tests import tiny_models
from tests.distributed.sharded import Case
from tests.distributed.training import VALIDATION, Plan, assert_same
from tests.train.toy_step import HALF, PURE_BF16

FULL = Plan(Case(peft=()))
PROMPTS = [Prompt("first", (5, 9, 2, 17), 5), Prompt("second", (8, 3), 3)]


def sharpen(model):
    """Logits that our own head does not make: the model's own forward, which is the root, must."""

    def change(module, args, output):
        output.logits = output.logits * 1.01
        return output

    causal_lm(model).register_forward_hook(change)


def check_no_shard_clipped(folder):
    """G08, G09"""
    case = replace(FULL.case, fsdp=FsdpConfig(sharding_strategy="NO_SHARD"))
    plan = replace(FULL, case=case, settings={"gradient_clipping_threshold": 0.1})
    found, expected = plan.run_both(folder / "whole")
    assert_same(found, expected)
    assert min(found.column("step", "grad_norm")) > 0.1


def check_padded_rows(folder):
    plan = Plan(Case("bloom", peft=("query_key_value", "dense")), accumulation=2)
    assert_same(*plan.run_both(folder / "padded"))


def check_logits_of_the_models_own_forward(folder):
    for case in (FULL.case, Case()):
        plan = Plan(case, prepare=sharpen, accumulation=2, val_rows=VALIDATION)
        with plan.open(folder / "route", sharded=True) as training:
            assert training.batch_loss.route.head == "own"
        assert_same(*plan.run_both(folder / f"own{len(case.peft)}"))


def check_weights_in_bfloat16(folder):
    """Micro-batches add up in float32 there, and rounding is kept beside the weights."""
    plan = replace(
        *(FULL,),
        accumulation=2,
        precision=PURE_BF16,
        prepare=lambda model: model.to(torch.bfloat16),
        settings={"optimizer": "anyprecision"},
    )
    # Of all ranks together, products of other shapes round otherwise: 8 bits.
    assert_same(*plan.run_both(folder / "bf16"), tolerance=2e-2)


def check_samples(folder):
    """The same answers, from all ranks together; and the training does not notice."""
    for case in (Case(recomputing=True), FULL.case):
        plan = Plan(case, prompts=PROMPTS, settings={"lr": 1e-2})
        found, expected = plan.run_both(folder / f"samples{len(case.peft)}")
        answers = found.column("sample", "answer")
        assert len(answers) > 4
        assert answers == expected.column("sample", "answer")
        without = replace(plan, prompts=()).run(folder / f"none{len(case.peft)}")
        assert without.column("step", "loss") == found.column("step", "loss")


def check_no_rank_leaves_a_sample_before_the_others(folder):
    """The last one takes any token as the end of an answer; the others still need its shares."""
    plan = Plan(prompts=PROMPTS)
    with plan.open(folder / "ends", sharded=True) as training:
        usual = list(training.sampler.answers())
        if dist.get_rank() == dist.get_world_size() - 1:
            every = list(range(tiny_models.VOCABULARY))
            causal_lm(training.batch_loss.model).generation_config.eos_token_id = every
        answers = list(training.sampler.answers())
    assert (answers == usual) == (dist.get_rank() < dist.get_world_size() - 1)


def check_reports_are_of_all_ranks(folder):
    plan = replace(FULL, settings={"flop_counter": True, "flop_counter_start": 1})
    found, expected = plan.run_both(folder / "reports")
    assert found.column("flop_count", "flops") == expected.column("flop_count", "flops")
    assert found.column("step", "flops") == expected.column("step", "flops")
    ballast = torch.ones(dist.get_rank() * 2**25)  # 128 MiB more on rank 1
    found = plan.run(folder / "memory")
    peaks = [None] * dist.get_world_size()
    dist.all_gather_object(peaks, host_memory()["host_peak_rss_bytes"])
    [told] = found.column("end", "host_peak_rss_bytes")
    assert peaks[0] + 2**26 < told <= peaks[1]
    del ballast


def check_products_in_half_precision(folder):
    """float32 weights are cast when they are gathered, where one process casts by autocast.

    8 bits, and 11; Adam makes more of the rounding of small gradients.
    """
    bfloat16 = replace(HALF, base="float32", compute="bfloat16", loss_scaling=False)
    for precision, tolerance in ((bfloat16, 2e-2), (replace(HALF, base="float32"), 5e-3)):
        plan = replace(FULL, precision=precision, accumulation=2)
        assert_same(*plan.run_both(folder / precision.compute), tolerance=tolerance)
