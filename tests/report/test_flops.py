"""The formula and the counter against torch's own counts of what it computes."""

import json
import logging

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from ftrecipes.config.schema import QuantizationConfig
from ftrecipes.model.attention import ROW_ATTENTION
from ftrecipes.model.forward import LossRoute
from ftrecipes.report.flop_counter import FlopCounter
from ftrecipes.report.flops import flop_formula
from ftrecipes.report.peaks import device_peak, peak_flops
from ftrecipes.report.recorder import Recorder
from tests.model.loading import load
from tests.tiny_models import build, random_rows, save_folder

CPU = torch.device("cpu")
FLAT = LossRoute(flat=True, head="chunked", reason="")
LENGTHS = (16, 16, 9)
H, E = 4, 8  # heads and their width, of every model here


def counted(action) -> int:
    """What the counter tells of `action`."""
    lines = []
    with FlopCounter(1).watch(1, lambda kind, **fields: lines.append(fields)):
        action()
    return lines[0]["flops"]


def backward(model: nn.Module) -> int:
    """One forward and backward of LENGTHS; the number of tokens."""
    rows = random_rows(LENGTHS)
    ids = torch.tensor([token for row in rows for token in row[0]])
    labels = torch.tensor([label for row in rows for label in [-100, *row[1][1:]]])
    model.train()
    model.set_attn_implementation(ROW_ATTENTION)
    FLAT.loss_sum(model, ids, labels, LENGTHS).backward()
    return int((labels != -100).sum())


def step(model: nn.Module) -> tuple[int, int]:
    """Counted FLOPs of `backward`, and its number of tokens."""
    tokens = []
    return counted(lambda: tokens.append(backward(model))), tokens[0]


def recomputed_scores(layers: int, lengths=LENGTHS) -> int:
    """Fused attention computes its scores once more in the backward: one product of its two."""
    return layers * sum(2 * H * E * n * n for n in lengths)


@pytest.mark.parametrize("name", ["llama", "llama_tied", "gpt2", "mixtral", "qwen3"])
def test_full_fine_tuning_is_counted_exactly(name):
    model = build(name)
    flops, num_tokens = step(model)
    assert flop_formula(model).count(LENGTHS, num_tokens) == flops - recomputed_scores(2)


def test_a_window_bounds_the_keys_of_a_row():
    model = build("mistral")  # 5 tokens wide
    formula = flop_formula(model)
    both = (1 + 2) * 2 * H * (E + E) * 2  # forward and backward, two layers
    assert formula.per_pair == {5: both}
    rows = [3, 9]
    assert formula.count(rows, 0) - formula.per_position * 12 == both * (3 * 3 + 9 * 5)


def lora(model: nn.Module, **settings) -> nn.Module:
    return get_peft_model(model, LoraConfig(r=4, task_type="CAUSAL_LM", **settings))


def test_an_adapter_is_counted_but_for_siblings_that_read_the_first_block():
    model = lora(build("llama"), target_modules="all-linear")
    flops, num_tokens = step(model)
    # k_proj and v_proj of the first block, with their A, come after q_proj is trained, but read the
    # embeddings, which need no gradient; the formula does not know.
    siblings = 2 * sum(LENGTHS) * 2 * (32 * 16 + 32 * 4)
    formula = flop_formula(model).count(LENGTHS, num_tokens)
    assert formula - siblings == flops - recomputed_scores(2)


def test_what_lies_below_the_first_adapter_is_only_computed_forward():
    model = lora(build("llama"), target_modules=["q_proj"], layers_to_transform=[1])
    flops, num_tokens = step(model)
    formula = flop_formula(model)
    siblings = 2 * sum(LENGTHS) * 2 * 32 * 16  # k_proj and v_proj, as above
    assert formula.count(LENGTHS, num_tokens) - siblings == flops - recomputed_scores(1)
    assert formula.per_pair == {None: (1 + 3) * 2 * H * (E + E)}


def test_packed_weights_stand_for_all_they_hold(tmp_path):
    save_folder("mixtral", tmp_path, hidden_size=64, intermediate_size=128)
    packed, plain = load(tmp_path, QuantizationConfig(method="4bit")), load(tmp_path)
    packed.requires_grad_(False)
    assert sum(p.numel() for p in packed.parameters()) < sum(p.numel() for p in plain.parameters())
    assert flop_formula(packed) == flop_formula(plain.requires_grad_(False))


@pytest.mark.parametrize("method", ["4bit", "8bit"])
def test_quantized_products_are_counted(method, tmp_path):
    save_folder("llama", tmp_path, hidden_size=64, intermediate_size=128)
    packed, plain = load(tmp_path, QuantizationConfig(method=method)), load(tmp_path)
    counts = [step(lora(model, target_modules=["q_proj"])) for model in (packed, plain)]
    assert counts[0] == counts[1]


def test_models_that_do_not_say_how_many_experts_work_have_no_formula():
    model = build("mixtral")
    del model.config.num_experts_per_tok
    assert flop_formula(model) is None


def test_counting_changes_no_gradient_beyond_rounding():
    plain, watched = build("llama"), build("llama")
    backward(plain)
    step(watched)
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        # torch splits some products otherwise while it counts: float32 rounds differently
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)


STEP = {"epoch": 1, "lr": 0.1, "loss": 1.0, "grad_norm": 1.0, "rows": 2, "note": ""}


def run_steps(path, *, steps: int, **settings) -> list[dict]:
    with Recorder(path, rank=0, device=CPU, total_steps=steps, **settings) as run:
        for number in range(1, steps + 1):
            with run.watch(number):
                torch.ones(4, 8) @ torch.ones(8, 2)
            run.step(step=number, num_tokens=3, positions=8, seconds=0.5, lengths=[5, 3], **STEP)
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rate_and_utilization_are_in_the_line_of_a_step(tmp_path):
    model = build("llama")
    formula = flop_formula(model)
    settings = {"formula": formula, "peak": 1e9}
    for line in run_steps(tmp_path / "metrics.jsonl", steps=3, **settings):
        assert line["flops"] == formula.count([5, 3], 3)
        assert line["tflops"] == pytest.approx(line["flops"] / 0.5 / 1e12)
        assert line["mfu"] == pytest.approx(line["flops"] / 0.5 / 1e9)
    unknown = run_steps(tmp_path / "metrics.jsonl", steps=1, formula=formula)[0]
    assert "mfu" not in unknown
    assert not {"flops", "tflops", "mfu"} & set(run_steps(tmp_path / "metrics.jsonl", steps=1)[0])


def test_one_step_is_counted(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="ftrecipes"):
        lines = run_steps(tmp_path / "metrics.jsonl", steps=3, watchers=[FlopCounter(2)])
    (line,) = [line for line in lines if line["kind"] == "flop_count"]
    assert (line["step"], line["flops"]) == (2, 2 * 4 * 8 * 2)
    assert line["tflops"] == pytest.approx(line["flops"] / line["seconds"] / 1e12)
    assert any(message.startswith("step 2 took 128 floating") for message in caplog.messages)


def test_a_run_too_short_to_count_says_so(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, logger="ftrecipes"):
        run_steps(tmp_path / "metrics.jsonl", steps=2, watchers=[FlopCounter(3)])
    (message,) = caplog.messages
    assert "nothing was counted" in message
    assert "--flop_counter_start" in message


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989),
        ("NVIDIA H100 PCIe", "bfloat16", 756),
        ("NVIDIA A100-SXM4-80GB", "float32", 19.5),
        ("Tesla T4", "bfloat16", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bfloat16", None),
        ("NVIDIA L40S", "bfloat16", 362),
        ("some chip", "float16", None),
    ],
)
def test_peaks_are_of_the_named_chip_alone(name, dtype, tflops):
    assert peak_flops(name, dtype) == (tflops and tflops * 1e12)
    assert device_peak(CPU, dtype) is None
