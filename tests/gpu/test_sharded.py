"""Short runs with --enable_fsdp on one CUDA device: one rank, joined by NCCL with itself.

Beside the same run without shares. Tolerances: see test_training.py.
"""

import json

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.e2e.runs import lines
from tests.gpu.test_training import FLOAT32, losses
from tests.tiny_tokenizers import build_tokenizer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MIB = 2**20


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
def test_one_rank_of_nccl_trains_as_one_process(finetune, strategy):
    """--enable_fsdp with one rank on NCCL: losses of a run without it, in float32."""
    flags = {"enable_fsdp": True, "fsdp.sharding_strategy": strategy}
    assert losses(finetune("shares", **flags, **FLOAT32)) == pytest.approx(
        losses(finetune("whole", **FLOAT32)), rel=1e-4
    )


@pytest.mark.parametrize("storage", ["uint8", "bfloat16"])
def test_four_bits_in_shares(finetune, storage):
    """--enable_fsdp --quantization 4bit: packed by shares on the device, trained in bfloat16."""
    flags = {"quantization": "4bit", "quantization.quant_storage": storage}
    ours = losses(finetune("shares", enable_fsdp=True, **flags))
    assert ours == pytest.approx(losses(finetune("whole", **flags)), rel=0.02)


def test_shares_on_the_host(finetune):
    """--fsdp.cpu_offload: shares and optimizer in pinned host memory."""
    flags = {"enable_fsdp": True, "fsdp.cpu_offload": True}
    assert losses(finetune("host", **flags, **FLOAT32)) == pytest.approx(
        losses(finetune("whole", **FLOAT32)), rel=1e-4
    )


def test_full_fine_tuning_in_shares(finetune):
    """--enable_fsdp without --use_peft: float32 weights, gathered in bfloat16."""
    ours = losses(finetune("shares", enable_fsdp=True, use_peft=False))
    theirs = losses(finetune("whole", use_peft=False, **FLOAT32))
    assert ours == pytest.approx(theirs, rel=0.02)


def test_float16_in_shares(finetune):
    """--enable_fsdp --use_fp16: the loss scaler over shares."""
    ours = losses(finetune("shares", enable_fsdp=True, use_fp16=True))
    assert ours == pytest.approx(losses(finetune("float32", **FLOAT32)), rel=0.01)


def test_peak_memory_is_that_of_the_page(finetune, tmp_path):
    """Peak memory of 4-bit LoRA in shares: at most 1.3 times the sum in docs/memory.md."""
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=16,
        max_position_embeddings=2048,
        dtype="bfloat16",
    )
    folder = tmp_path / "medium"
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    build_tokenizer("chatml").save_pretrained(folder)
    rows = tmp_path / "rows.jsonl"
    ids = [index % 90 for index in range(1024)]
    row = {"input_ids": ids, "labels": ids}
    rows.write_text("".join(json.dumps(row) + "\n" for _ in range(6)), encoding="utf-8")
    run = finetune(
        model_name=folder,
        dataset=rows,
        quantization="4bit",
        enable_fsdp=True,
        batching_strategy="packing",
        batch_size_training=2,
        context_length=1024,
        num_epochs=1,
    )
    [end] = lines(run, "end")
    positions, width, blocks = 2048, 2048, 8
    block = 4 * width * width + 3 * width * 5632
    trained = blocks * 16 * (4 * 2 * width + 3 * (width + 5632))
    expected = blocks * block / 2 + blocks * block * (1 + 4 / 256) / 64  # packed, statistics
    expected += 2 * 32000 * width * 2 + 32000 * width * 2  # embedding and head, the head gathered
    expected += 2 * block / 2 + 16 * trained + 2 * width * 5632  # blocks gathered, adapters, one
    expected += (blocks + 23) * positions * width * 2 + 2 * 256 * MIB  # inputs, a block, the logits
    assert end["device_peak_allocated_bytes"] <= 1.3 * expected
