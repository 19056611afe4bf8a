"""Three ranks: no first dimension of these models is a multiple of three, and some are smaller."""

from ftrecipes.config.sections import FsdpConfig
from ftrecipes.parallel.wrap_report import wrap_report
from ftrecipes.runtime.shares import Share
from tests.distributed.sharded import Case, assert_steps_equal, cut


def check_some_shares_are_empty(folder):
    cutting = cut(Case())
    lengths = [len(rows) for rows in cutting.engine.share.all_rows(4)]
    assert lengths == [2, 2, 0]
    factors = [p for n, p in cutting.model.named_parameters() if "lora_A" in n]
    assert {len(cutting.engine.local(p)) for p in factors} == {lengths[cutting.engine.share.index]}
    report = wrap_report(cutting.model, cutting.units, cutting.engine)
    assert report.measured_bytes == report.expected_bytes  # torch pads those that are smaller
    assert report.expected_bytes - report.buffer_bytes > report.parameter_bytes / 3


def check_ranks_that_keep_less_sum_gradients_when_the_others_do(folder):
    """Whole gradients that fit beside the shares of the first rank, and not beside the last's."""
    model = Case(peft=()).build().requires_grad_(False)
    parameters = sorted(model.parameters(), key=lambda p: p.numel(), reverse=True)
    kept = [
        sum(p.nbytes // len(p) * len(Share(rank, 3).rows(len(p))) for p in parameters)
        for rank in range(3)
    ]
    trained = 0
    for parameter in parameters:
        if trained + 4 * parameter.numel() <= kept[0]:
            parameter.requires_grad_(True)
            trained += 4 * parameter.numel()
    assert kept[2] < trained <= kept[0]
    assert cut(Case(peft=()), model).engine.sums_once


def check_full(folder):
    assert_steps_equal(Case(peft=(), recomputing=True), accumulation=2)


def check_full_tied(folder):
    assert_steps_equal(Case("llama_tied", peft=()), accumulation=1)


def check_lora(folder):
    assert_steps_equal(Case(recomputing=True), accumulation=2)


def check_qlora(folder):
    assert_steps_equal(Case(storage="uint8", recomputing=True), accumulation=2)


def check_lora_offloaded(folder):
    assert_steps_equal(Case(fsdp=FsdpConfig(cpu_offload=True)), accumulation=2)


def check_ranks_without_rows(folder):
    assert_steps_equal(Case(), accumulation=2, num_rows=1)
