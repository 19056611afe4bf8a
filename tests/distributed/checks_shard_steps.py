"""Two ranks: steps on shares against one process, for every kind of training and strategy."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ftrecipes.config.errors import ModelError
from ftrecipes.config.sections import FsdpConfig
from ftrecipes.parallel.wrap_report import check_saved, kept_bytes, wrap_report
from tests import reference
from tests.distributed.sharded import Case, assert_steps_equal, cut, rows

GRAD_OP = FsdpConfig(sharding_strategy="SHARD_GRAD_OP")
WHOLE = FsdpConfig(sharding_strategy="NO_SHARD")
EVERYTHING = ()
ENDS = ("q_proj", "down_proj", "embed_tokens", "lm_head")
EXPERTS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")


def check_full(folder):
    assert_steps_equal(Case(peft=EVERYTHING), accumulation=1)


def check_full_accumulated_and_recomputed(folder):
    assert_steps_equal(Case(peft=EVERYTHING, recomputing=True), accumulation=2)


def check_full_tied(folder):
    assert_steps_equal(Case("llama_tied", peft=EVERYTHING), accumulation=2)


def check_full_grad_op(folder):
    assert_steps_equal(Case(peft=EVERYTHING, fsdp=GRAD_OP), accumulation=2)


def check_full_no_shard(folder):
    assert_steps_equal(Case(peft=EVERYTHING, fsdp=WHOLE), accumulation=2)


def check_lora(folder):
    assert_steps_equal(Case(), accumulation=1)


def check_lora_accumulated_and_recomputed(folder):
    assert_steps_equal(Case(recomputing=True), accumulation=2)


def check_lora_no_shard_recomputed(folder):
    assert_steps_equal(Case(fsdp=WHOLE, recomputing=True), accumulation=2)


def check_lora_of_embedding_and_head(folder):
    assert_steps_equal(Case(peft=ENDS), accumulation=2)


def check_lora_of_tied_embedding(folder):
    assert_steps_equal(Case("llama_tied", peft=ENDS[:-1]), accumulation=2)


def check_qlora_uint8(folder):
    assert_steps_equal(Case(storage="uint8", recomputing=True), accumulation=2)


def check_qlora_float32_storage(folder):
    assert_steps_equal(Case(storage="float32", fsdp=GRAD_OP), accumulation=1)


class _Scaled(nn.Embedding):
    """As some models have it: its backward needs its weights, unlike that of a plain one."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return super().forward(ids) * self.scale


class _ScaledCase(Case):
    def build(self) -> nn.Module:
        model = super().build()
        model.model.embed_tokens.__class__ = _Scaled
        model.model.embed_tokens.scale = nn.Parameter(torch.linspace(0.5, 2.0, 32))
        return model


def check_an_embedding_with_a_scale(folder):
    assert_steps_equal(_ScaledCase(peft=EVERYTHING), accumulation=2)


def check_experts(folder):
    assert_steps_equal(Case("qwen3_moe", peft=EVERYTHING), accumulation=2)


def check_packed_experts(folder):
    case = Case("qwen3_moe", parameters=EXPERTS, storage="uint8", recomputing=True)
    assert_steps_equal(case, accumulation=2)


def check_adapted_experts(folder):
    assert_steps_equal(Case("qwen3_moe", parameters=EXPERTS), accumulation=2)


def check_cpu_offload(folder):
    case = Case(storage="uint8", recomputing=True, fsdp=FsdpConfig(cpu_offload=True))
    assert_steps_equal(case, accumulation=2)


def check_a_rank_without_rows(folder):
    assert_steps_equal(Case(), accumulation=2, num_rows=1)


def check_parts_that_no_text_reaches(folder):
    assert_steps_equal(Case("moss_transcribe_diarize", peft=EVERYTHING), accumulation=2)


def check_pure_bfloat16(folder):
    """Gradients have the dtype of the parameter; over micro-batches they add up in float32."""
    case = Case(peft=EVERYTHING)
    exact = case.build()
    reference.backward_step(exact, rows())
    cutting = cut(case, case.build().bfloat16())
    cutting.gradients(rows(), accumulation=3)
    for name, parameter in cutting.model.named_parameters():
        expected, found = exact.get_parameter(name).grad, cutting.whole(parameter.grad)
        assert found.dtype == torch.bfloat16
        # 8 bits of mantissa in every product of two blocks
        assert (found - expected).norm() < 0.05 * expected.norm(), name


def check_gradients_of_float32_adapters_on_a_bfloat16_base(folder):
    case = Case(recomputing=True)
    exact, mixed = case.build(), case.build()
    for parameter in mixed.parameters():
        parameter.data = parameter.data.to(
            torch.float32 if parameter.requires_grad else torch.bfloat16
        )
    reference.backward_step(exact, rows())
    cutting = cut(case, mixed, compute=torch.bfloat16)
    cutting.gradients(rows(), accumulation=2)
    for name, parameter in exact.named_parameters():
        if parameter.requires_grad:
            name = name.replace(".self_attn", "._checkpoint_wrapped_module.self_attn")
            name = name.replace(".mlp", "._checkpoint_wrapped_module.mlp")
            found = cutting.whole(cutting.model.get_parameter(name).grad)
            assert found.dtype == torch.float32
            assert (found - parameter.grad).norm() < 0.05 * parameter.grad.norm(), name


def check_a_float16_overflow_on_one_rank_is_one_on_all(folder):
    cutting = cut(Case())
    trained = [p for p in cutting.model.parameters() if p.requires_grad]
    optimizer, scaler = torch.optim.SGD(trained, lr=1.0), torch.amp.GradScaler("cpu")
    cutting.gradients(rows())
    scaler.scale(torch.ones(()))
    if dist.get_rank() == 1:
        cutting.engine.local(trained[3].grad)[0, 0] = torch.inf
    before = [cutting.engine.local(p).clone() for p in trained]
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scale = scaler.get_scale()
    scaler.update()
    assert scaler.get_scale() == scale / 2
    assert all(b.equal(cutting.engine.local(p)) for b, p in zip(before, trained, strict=True))


def check_trained_parameters_of_two_dtypes(folder):
    model = Case().build()
    model.get_parameter(
        "base_model.model.model.layers.1.self_attn.q_proj.lora_A.default.weight"
    ).data = torch.zeros(4, 32, dtype=torch.float64)
    with pytest.raises(ModelError, match=r"block base_model.model.model.layers.1\)[^\0]*float64"):
        cut(Case(), model)


def check_storage_that_would_be_cast(folder):
    with pytest.raises(ModelError, match="quant_storage uint8"):
        cut(Case(storage="float32"), compute=torch.bfloat16)


def check_the_report_counts(folder):
    case = Case(storage="uint8", recomputing=True)
    whole, cutting = case.build(), cut(case)
    report = wrap_report(cutting.model, cutting.units, cutting.engine)
    check_saved(kept_bytes(cutting.model, ranks=2), ranks=2)
    assert [(row.kind, row.module_class, count) for row, count in report.rows] == [
        ("block", "LlamaDecoderLayer", 2),
        ("embedding", "Embedding", 1),
        ("head", "Linear", 1),
        ("root", "PeftModelForCausalLM", 1),
    ]
    block = report.rows[0][0]
    linear = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48
    adapters = 4 * (32 + 32) + 4 * (32 + 16) + 4 * (48 + 32)
    assert (block.parameters, block.trained) == (linear + adapters + 2 * 32, adapters)
    assert block.num_bytes == linear // 2 + 4 * (adapters + 2 * 32)
    assert block.dtypes == ("float32", "uint8")
    assert report.parameter_bytes == sum(p.nbytes for p in whole.parameters())
    # every first dimension is even here
    assert report.expected_bytes == report.measured_bytes
    shares = report.measured_bytes - report.buffer_bytes - report.statistics_bytes
    assert shares == report.parameter_bytes / 2
    assert report.statistics_bytes > 0
    assert len(report.lines()) == 5
