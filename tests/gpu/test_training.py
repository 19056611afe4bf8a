"""Short runs on a CUDA device, each beside the same run in float32 or on the CPU.

bfloat16 has 8 bits, float16 11: a loss near 5 may differ by 2 % and 1 % after three small steps.
"""

import json

import pytest
import torch

from tests import tiny_models
from tests.e2e.runs import lines
from tests.tiny_tokenizers import build_tokenizer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
FLOAT32 = {"mixed_precision": False, "dtype": "float32"}


def losses(folder) -> list[float]:
    """Of the three steps."""
    found = [line["loss"] for line in lines(folder, "step")]
    assert len(found) == 3
    return found


def test_a_float32_run_equals_that_on_the_cpu(finetune):
    """Loop, batches, chunked head and fused AdamW in float32: all weights trained, as on a CPU."""
    ours = losses(finetune("cuda", use_peft=False, **FLOAT32))
    theirs = losses(finetune("cpu", use_peft=False, device="cpu"))
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert ours[2] < ours[0]


def test_bfloat16_autocast_is_near_float32(finetune):
    """bfloat16 autocast, the default: LoRA on a float32 base."""
    ours = losses(finetune("bfloat16", dtype="float32"))
    assert ours == pytest.approx(losses(finetune("float32", **FLOAT32)), rel=0.02)


def test_rows_laid_flat_in_bfloat16(finetune):
    """Rows laid flat in bfloat16 (varlen kernel): packing as padding, and that as float32."""
    packed = losses(finetune("packed", batching_strategy="packing"))
    assert packed == pytest.approx(losses(finetune("padded")), rel=0.02)
    assert packed == pytest.approx(losses(finetune("float32", **FLOAT32)), rel=0.02)


def test_a_float16_run_with_its_scaler(finetune):
    """--use_fp16: float16 products and the loss scaler."""
    folder = finetune("float16", use_fp16=True)
    assert losses(folder) == pytest.approx(losses(finetune("float32", **FLOAT32)), rel=0.01)
    assert [line["step"] for line in lines(folder, "step") if "note" in line] == []


def test_pure_bfloat16_with_anyprecision(finetune):
    """--pure_bf16 with --optimizer anyprecision: weights and moments in bfloat16."""
    ours = losses(finetune("pure", use_peft=False, pure_bf16=True, optimizer="anyprecision"))
    assert ours == pytest.approx(losses(finetune("float32", use_peft=False, **FLOAT32)), rel=0.02)
    assert ours[2] < ours[0]


@pytest.mark.parametrize("optimizer", ["adamw_8bit", "paged_adamw_8bit"])
def test_optimizers_of_bitsandbytes(finetune, optimizer):
    """--optimizer adamw_8bit and paged_adamw_8bit (the embedding is large enough for 8 bits)."""
    ours = losses(finetune(optimizer, use_peft=False, optimizer=optimizer, **FLOAT32))
    theirs = losses(finetune("adamw", use_peft=False, **FLOAT32))
    assert ours == pytest.approx(theirs, rel=0.02)
    assert ours[2] < ours[0]


@pytest.mark.parametrize("method", ["4bit", "8bit"])
def test_quantized_weights_are_those_of_the_cpu(finetune, method, val_file):
    """--quantization 4bit and 8bit: loss before training as on the CPU, and adapters that train."""
    flags = {"quantization": method, "data.val_file": val_file}
    ours = finetune("cuda", **flags, **FLOAT32)
    theirs = finetune("cpu", device="cpu", **flags)
    before, *_, after = (line["loss"] for line in lines(ours, "evaluation"))
    # a weight between two codes may be rounded either way
    assert before == pytest.approx(lines(theirs, "evaluation")[0]["loss"], rel=1e-3)
    assert after < before


def test_a_mixture_in_four_bits(finetune, tmp_path):
    """--quantization 4bit of experts, multiplied in bfloat16."""
    folder = tiny_models.save_folder(
        "mixtral", tmp_path / "mixtral", tokenizer=build_tokenizer("chatml"), hidden_size=64
    )
    found = losses(finetune(model_name=folder, quantization="4bit"))
    assert found[2] < found[0]


def test_memory_and_speed_of_a_run_are_told(finetune):
    """Device memory in metrics.jsonl: peaks of the run."""
    [end] = lines(finetune(), "end")
    assert end["device_peak_allocated_bytes"] > 0
    assert end["device_peak_reserved_bytes"] >= end["device_peak_allocated_bytes"]
    assert end["device_ooms"] == 0


def test_a_trace_holds_kernels_of_the_device(finetune):
    """--use_profiler: kernels of the device are in the trace."""
    folder = finetune(use_profiler=True, profiler_start=2, profiler_steps=1)
    [trace] = (folder / "profile").glob("trace-*.json")
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    assert [event for event in events if event.get("cat") == "kernel"]


def test_answers_are_generated_while_training(finetune, tmp_path):
    """--samples.prompts: answers of the model on the device."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Tell me about rain.\n")
    flags = {"samples.prompts": prompts, "samples.max_new_tokens": 4}
    assert len(lines(finetune(**flags), "sample")) >= 2
