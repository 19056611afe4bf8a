"""The type that packs 4-bit weights, and the type that sharding casts what it gathers to."""

import pytest

from ftrecipes.config.check_fsdp import storage_fault
from ftrecipes.config.parse import parse_words
from ftrecipes.config.precision import policy_dtype, resolve_precision
from ftrecipes.config.schema import RunConfig
from ftrecipes.config.sections import QuantizationConfig
from ftrecipes.config.stored import Stored, settled, stored_faults
from tests.config.faults import faults_of

QLORA = "--use_peft --quantization 4bit --enable_fsdp --quantization_config.quant_storage"


def parsed(needed: list[str], words: str) -> RunConfig:
    return parse_words([*needed, *words.split()]).config


@pytest.mark.parametrize(
    ("storage", "words", "compute"),
    [
        ("bf16", "--use_fp16", "float16"),
        ("fp32", "--use_fp16", "float16"),
        ("fp32", "--device cuda", "bfloat16"),
        ("fp16", "--device xpu", "bfloat16"),
        ("bf16", "--device cuda --quantization.compute_dtype fp16", "float16"),
        ("fp32", "--quantization.compute_dtype bf16", "bfloat16"),
        ("fp16", "--dtype bf16", "bfloat16"),
        ("fp32", "--mixed_precision no --dtype fp32 --quantization.compute_dtype bf16", "bfloat16"),
        ("bf16", "--mixed_precision no --dtype bf16 --quantization.compute_dtype fp16", "float16"),
    ],
)
def test_storage_that_would_be_cast_is_told_when_the_flags_are_read(
    storage, words, compute, needed
):
    (fault,) = faults_of(lambda: parsed(needed, f"{QLORA} {storage} {words}"))
    assert f"casts what is not in {compute}" in fault
    assert f"expected: uint8 or {compute}\n  do: leave --quantization.quant_storage out" in fault


@pytest.mark.parametrize(
    ("storage", "words"),
    [
        ("uint8", ""),
        ("uint8", "--use_fp16"),
        ("bf16", "--device cuda"),
        ("fp16", "--use_fp16"),
        ("bf16", "--dtype bf16"),
        ("fp32", "--pure_bf16"),  # everything is in bfloat16 already: nothing is cast
        ("bf16", "--mixed_precision no --dtype fp16"),
        ("fp32", "--device cpu"),
        ("fp32", ""),  # right on a CPU; the device is not known yet
    ],
)
def test_storage_that_is_right_or_not_yet_known(storage, words, needed):
    config = parsed(needed, f"{QLORA} {storage} {words}")
    expected = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "uint8": "uint8"}
    assert config.quantization.quant_storage == expected[storage]


def test_storage_is_checked_once_the_device_is_known(needed):
    config = parsed(needed, f"{QLORA} float32")
    for device, names in (("cpu", None), ("cuda", "float32 with --enable_fsdp")):
        precision = resolve_precision(config, device_type=device, checkpoint_dtype="bfloat16")
        casts = policy_dtype(precision) is not None
        fault = storage_fault(config, precision, casts=casts)
        assert fault is None if names is None else names in fault.text
        assert storage_fault(config, precision, casts=False) is None


def test_a_base_that_is_stored_in_four_bits_counts_with_its_own_type(needed):
    config = parsed(needed, "--use_peft --enable_fsdp")
    stored = Stored("bitsandbytes", QuantizationConfig(method="4bit", quant_storage="float16"))
    config = settled(config, stored)
    precision = resolve_precision(config, device_type="cuda", checkpoint_dtype="bfloat16")
    fault = storage_fault(config, precision, casts=True)
    assert "--model_name owner/model: its 4-bit weights are stored as float16" in fault.text
    assert "packs it as uint8" in fault.text


def test_a_base_that_is_stored_in_eight_bits_is_refused(needed):
    stored = Stored("bitsandbytes", QuantizationConfig(method="8bit"))
    (fault,) = stored_faults(parsed(needed, "--use_peft --enable_fsdp"), stored)
    assert "stored in 8 bits" in fault.what
    assert list(stored_faults(parsed(needed, "--use_peft"), stored)) == []


@pytest.mark.parametrize(
    ("words", "device", "dtype"),
    [
        ("--use_peft", "cuda", "bfloat16"),
        ("", "cuda", "bfloat16"),
        ("--use_peft", "cpu", None),
        ("--pure_bf16", "cuda", None),
        ("--mixed_precision no", "cuda", None),
        ("--use_fp16", "cuda", "float16"),
        ("--use_peft --dtype bf16", "cpu", "bfloat16"),
    ],
)
def test_what_gathered_parameters_are_cast_to(words, device, dtype, needed):
    config = parsed(needed, words)
    precision = resolve_precision(config, device_type=device, checkpoint_dtype="bfloat16")
    assert policy_dtype(precision) == dtype
