"""The precision table, row by row, and its warning."""

import pytest

from ftrecipes.config.parse import parse_words
from ftrecipes.config.precision import (
    Precision,
    cpu_has_bfloat16,
    precision_warnings,
    resolve_precision,
)

FP32 = ("float32", "float32", "float32", "float32", False, False)
PRECISION_TABLE = [
    # flags, device, checkpoint -> base, trainable, compute, reduce, autocast, loss scaling
    ("--use_peft", "cuda", "bfloat16", ("bfloat16", "float32", "bfloat16", "float32", True, False)),
    ("--use_peft", "cuda", "float16", ("float16", "float32", "bfloat16", "float32", True, False)),
    ("--use_peft", "cuda", "float32", ("float32", "float32", "bfloat16", "float32", True, False)),
    ("--use_peft", "cuda", None, ("bfloat16", "float32", "bfloat16", "float32", True, False)),
    ("", "cuda", "bfloat16", ("float32", "float32", "bfloat16", "float32", True, False)),
    ("--use_peft", "cpu", "bfloat16", FP32),
    ("", "cpu", "bfloat16", FP32),
    ("--use_peft --quantization 4bit", "cpu", "bfloat16", FP32),
    ("--use_peft --quantization 8bit", "cpu", "bfloat16", FP32),
    (
        "--use_peft --quantization 4bit",
        "cuda",
        "bfloat16",
        ("bfloat16", "float32", "bfloat16", "float32", True, False),
    ),
    (
        "--use_peft --quantization 4bit --quantization.compute_dtype bf16",
        "cpu",
        "bfloat16",
        ("float32", "float32", "bfloat16", "float32", True, False),
    ),
    ("--use_peft --quantization 4bit --quantization.compute_dtype fp32", "cuda", "bfloat16", FP32),
    *(
        (
            f"--pure_bf16 {words}",
            device,
            "float32",
            ("bfloat16", "bfloat16", "bfloat16", "float32", False, False),
        )
        for words in ("", "--use_peft", "--use_peft --quantization 4bit", "--mixed_precision no")
        for device in ("cpu", "cuda")
    ),
    (
        "--use_fp16 --use_peft",
        "cuda",
        "bfloat16",
        ("float16", "float32", "float16", "float32", True, True),
    ),
    ("--use_fp16", "cuda", "bfloat16", ("float32", "float32", "float16", "float32", True, True)),
    (
        "--mixed_precision False --use_peft",
        "cuda",
        "float16",
        ("float16", "float16", "float16", "float32", False, False),
    ),
    (
        "--mixed_precision False",
        "cuda",
        "bfloat16",
        ("bfloat16", "bfloat16", "bfloat16", "float32", False, False),
    ),
    ("--mixed_precision False --use_peft --quantization int4", "cpu", "bfloat16", FP32),
    (
        "--mixed_precision False --use_peft --quantization 4bit --quantization.compute_dtype bf16",
        "cuda",
        "float32",
        ("float32", "bfloat16", "bfloat16", "float32", False, False),
    ),
    (
        "--use_peft --dtype float32",
        "cuda",
        "bfloat16",
        ("float32", "float32", "bfloat16", "float32", True, False),
    ),
    (
        "--use_peft --dtype bfloat16",
        "cpu",
        "float32",
        ("bfloat16", "float32", "bfloat16", "float32", True, False),
    ),
]


@pytest.mark.parametrize(("words", "device", "checkpoint", "expected"), PRECISION_TABLE)
def test_precision_table(words, device, checkpoint, expected, needed):
    config = parse_words([*needed, *words.split()]).config
    got = resolve_precision(config, device_type=device, checkpoint_dtype=checkpoint)
    assert got == Precision(*expected)


def test_precision_warning_for_a_cpu_without_bfloat16_units():
    slow = Precision("float32", "float32", "bfloat16", "float32", True, False)
    exact = Precision(*FP32)
    kept = precision_warnings(slow, device_type="cpu", cpu_has_bfloat16=False)
    assert len(kept) == 1
    assert "bfloat16" in kept[0]
    assert "40 times" in kept[0]
    for precision, device, units in (
        (slow, "cpu", True),
        (slow, "cuda", False),
        (exact, "cpu", False),
    ):
        assert precision_warnings(precision, device_type=device, cpu_has_bfloat16=units) == []
    assert cpu_has_bfloat16("flags : fpu avx512f avx512_bf16 amx_tile")
    assert cpu_has_bfloat16("Features : fp asimd bf16")
    assert not cpu_has_bfloat16("flags : fpu avx2 avx512f")
