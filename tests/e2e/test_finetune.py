"""The main job as a user runs it: a command line, a process, a folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests import reference

ROOT = Path(__file__).resolve().parents[2]


def ftrecipes(*words, **options) -> subprocess.CompletedProcess:
    """Run `python -m ftrecipes` with these words."""
    command = [sys.executable, "-m", "ftrecipes", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, **options)


def metrics(folder: Path, kind: str) -> list[dict]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


@pytest.fixture(scope="module")
def quantized_run(model_folder, chat_file, val_file, tmp_path_factory):
    """A 4-bit LoRA run of five steps: (folder, process)."""
    folder = tmp_path_factory.mktemp("runs") / "out"
    process = ftrecipes(
        "finetune",
        *("--model_name", model_folder, "--dataset", chat_file, "--data.val_file", val_file),
        *("--use_peft", "--peft_method", "lora", "--lora.r", 4, "--lr", "1e-2"),
        *("--quantization", "4bit", "--quantization.quant_type", "nf4"),
        *("--batching_strategy", "padding", "--max_train_step", 5, "--max_eval_step", 5),
        *("--output_dir", folder),
    )
    assert process.returncode == 0, process.stderr
    return folder, process


def test_an_adapter_loads_and_its_loss_is_the_one_in_the_log(quantized_run, model_folder, val_file):
    """Peft reads the folder; a plain loop over the validation rows gives the logged loss.

    The base is quantized again with the same settings; the sums run in another order, hence 1e-5.
    In train mode (there is no dropout), because bitsandbytes 0.50 repacks weights for inference in
    eval mode on CPUs with bfloat16 units, and fails on layers narrower than a block of 64.
    """
    folder, _ = quantized_run
    quantization = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    quantization |= {"bnb_4bit_use_double_quant": True, "bnb_4bit_compute_dtype": "float32"}
    base = AutoModelForCausalLM.from_pretrained(
        model_folder,
        quantization_config={"quant_method": "bitsandbytes", **quantization},
        dtype=torch.float32,
    )
    model = PeftModel.from_pretrained(base, folder)
    rows = reference.chat_rows(val_file, AutoTokenizer.from_pretrained(folder))
    before, *_, after = metrics(folder, "evaluation")
    assert before["num_tokens"] == reference.count_tokens(rows)
    model.train()
    assert reference.mean_loss(model, rows) == pytest.approx(after["loss"], abs=1e-5)
    with model.disable_adapter():
        assert reference.mean_loss(model, rows) == pytest.approx(before["loss"], abs=1e-5)
    assert after["loss"] < before["loss"] - 0.1


def test_the_adapter_file_holds_what_was_adapted(quantized_run):
    folder, _ = quantized_run
    tensors = load_file(folder / "adapter_model.safetensors")
    assert len(tensors) == 2 * 7 * 2  # A and B, 7 linear layers, 2 blocks
    assert all(tensor.abs().sum() > 0 for tensor in tensors.values())
    marks = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module", ".default.")
    assert not [name for name in tensors if any(mark in name for mark in marks)]
    settings = json.loads((folder / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"], settings["inference_mode"]) == (4, 32, True)
    assert Path(settings["base_model_name_or_path"]).is_absolute()


def test_the_run_folder_tells_the_run(quantized_run):
    folder, process = quantized_run
    record = json.loads((folder / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["origins"]["lora.r"] == "--lora.r"
    assert record["origins"]["seed"] == "default"
    prints = [record[f"{part}_fingerprint"] for part in ("model", "tokenizer", "train")]
    assert [len(value) for value in {*prints, record["validation_fingerprint"]}] == [64] * 4
    assert yaml.safe_load((folder / "run.yaml").read_text())["quantization"]["method"] == "4bit"
    assert "evaluation loss after" in (folder / "README.md").read_text()
    steps = metrics(folder, "step")
    assert [row["step"] for row in steps] == [1, 2, 3, 4, 5]
    assert process.stdout == ""
    assert "Traceback" not in process.stderr


def test_run_yaml_repeats_the_run_bit_for_bit(quantized_run, tmp_path):
    folder, _ = quantized_run
    again = tmp_path / "again"
    process = ftrecipes("finetune", "--config", folder / "run.yaml", "--output_dir", again)
    assert process.returncode == 0, process.stderr
    losses, repeated = ([row["loss"] for row in metrics(f, "step")] for f in (folder, again))
    assert losses == repeated
    first, second = (load_file(f / "adapter_model.safetensors") for f in (folder, again))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_earlier_result_is_refused_then_overwritten_on_request(quantized_run, tmp_path):
    folder, _ = quantized_run
    settings = ("--config", folder / "run.yaml", "--output_dir", folder)
    process = ftrecipes("finetune", *settings)
    assert process.returncode == 2
    assert "--overwrite_output_dir" in process.stderr
    before = (folder / "adapter_model.safetensors").read_bytes()
    process = ftrecipes("finetune", *settings, "--overwrite_output_dir", "--seed", 7)
    assert process.returncode == 0, process.stderr
    assert (folder / "adapter_model.safetensors").read_bytes() != before


def test_full_fine_tuning_saves_a_model_that_transformers_loads(model_folder, chat_file, tmp_path):
    folder = tmp_path / "full"
    process = ftrecipes(
        "finetune",
        *("--model_name", model_folder, "--dataset", chat_file, "--output_dir", folder),
        *("--num_epochs", 2, "--lr", "1e-3", "--gradient_accumulation_steps", 2),
        *("--batching_strategy", "padding"),
    )
    assert process.returncode == 0, process.stderr
    model = AutoModelForCausalLM.from_pretrained(folder)
    base = AutoModelForCausalLM.from_pretrained(model_folder)
    moved = [
        not torch.equal(a, b) for a, b in zip(model.parameters(), base.parameters(), strict=True)
    ]
    assert all(moved)
    assert len(metrics(folder, "step")) == 4
    assert not (folder / "adapter_config.json").exists()


def test_both_shims_and_the_module_are_the_same_command(model_folder, chat_file, tmp_path):
    for script in ("recipes/finetuning.py", "recipes/finetuning/finetuning.py"):
        folder = tmp_path / Path(script).parent.name
        process = subprocess.run(
            [
                *(sys.executable, ROOT / script, "--model_name", model_folder),
                *("--dataset", chat_file, "--output_dir", folder, "--use_peft"),
                *("--max_train_step", "1", "--save_model", "False"),
            ],
            capture_output=True,
            text=True,
            timeout=180,
        )
        assert process.returncode == 0, process.stderr
        assert not (folder / "adapter_model.safetensors").exists()
        assert len(metrics(folder, "step")) == 1


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--dataset", "{bad_row}"), 3, ["bad.jsonl line 2", "messages[1].content"]),
        (("--dataset", "{chat}", "--lora.target_modules", "q_proj,qq"), 4, ["qq", "k_proj"]),
        (("--dataset", "{chat}", "--model_name", "{empty}"), 4, ["config.json"]),
        (("--dataset", "{chat}", "--lr", "1e30", "--gradient_clipping", "no"), 6, ["Step ", "lr"]),
    ],
)
def test_a_users_mistake_ends_with_its_code_and_no_traceback_on_the_screen(
    flags, code, words, model_folder, chat_file, tmp_path
):
    lines = chat_file.read_text().splitlines()
    broken = json.loads(lines[1])
    broken["messages"][1]["content"] = None
    bad_row = tmp_path / "bad.jsonl"
    bad_row.write_text("\n".join([lines[0], json.dumps(broken), *lines[2:]]))
    (tmp_path / "empty").mkdir()
    places = {"bad_row": bad_row, "chat": chat_file, "empty": tmp_path / "empty"}
    flags = [flag.format(**places) for flag in flags]
    model = [] if "--model_name" in flags else ["--model_name", model_folder]
    out = tmp_path / "out"
    process = ftrecipes("finetune", *flags, *model, "--use_peft", "--output_dir", out)
    assert process.returncode == code, process.stderr
    assert "Traceback" not in process.stderr
    assert all(word in process.stderr for word in words), process.stderr
    assert "Traceback" in (out / "error.txt").read_text()
    assert json.loads((out / "run.json").read_text())["status"] == "failed"
    assert (out / "adapter_model.safetensors").exists() == (code == 6)


def test_generate_answers_with_and_without_the_adapter(quantized_run):
    folder, _ = quantized_run
    words = ("--prompt", "Tell me about rain.", "--max_new_tokens", 8)
    both = ftrecipes("generate", "--adapter", folder, *words)
    assert both.returncode == 0, both.stderr
    assert "without the adapter" in both.stdout
    assert "with the adapter" in both.stdout
    alone = ftrecipes("generate", "--adapter", folder, *words, "--compare", "no")
    assert alone.stdout == both.stdout[both.stdout.index("--- with the adapter") :]
