"""Training on two hosts, each in a network namespace of its own, by torchrun and the recipe."""

import json
import os
import re
import time
from pathlib import Path

from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from ftrecipes.runtime.judge import Patience
from tests.distributed import hosts as two
from tests.e2e import runs
from tests.ranks import ROOT

LIMIT = 90
HOSTS = ["first", "second"]


def start(pair, model: Path, rows: Path, folder: Path, *flags: str) -> list:
    """The recipe on both hosts, one process each, into `folder`/out; words in log0, log1."""
    path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    recipe = ["recipes/finetuning.py", "--enable_fsdp", "--use_peft", *flags]
    recipe += ["--model_name", str(model), "--dataset", str(rows), "--device", "cpu"]
    recipe += ["--output_dir", str(folder / "out"), "--lr", "0.01"]
    return [
        host.start(two.torchrun(pair, number, recipe), folder / f"log{number}", environment)
        for number, host in enumerate(pair)
    ]


def end(processes: list) -> list[int]:
    try:
        return [process.wait(LIMIT) for process in processes]
    finally:
        for process in processes:
            two.kill(process)


def words(folder: Path, number: int) -> str:
    return (folder / f"log{number}").read_text()


def test_two_hosts_train_and_save(pair, model_folder, chat_file, tmp_path):
    """Three steps; the first host leaves one whole adapter, which has learned."""
    codes = end(start(pair, model_folder, chat_file, tmp_path, "--max_train_step", "3"))
    assert codes == [0, 0], words(tmp_path, 0) + words(tmp_path, 1)
    out = tmp_path / "out"
    record = json.loads((out / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["world"]["size"] == 2
    assert record["world"]["hosts"] == HOSTS
    assert [row["step"] for row in runs.lines(out, "step")] == [1, 2, 3]
    weights = load_file(out / runs.WEIGHTS)
    base = AutoModelForCausalLM.from_pretrained(model_folder)
    rows = {name: len(parameter) for name, parameter in base.named_parameters()}
    trained = {name: tensor for name, tensor in weights.items() if "lora_B" in name}
    assert trained
    for name, tensor in trained.items():
        layer = name.removeprefix("base_model.model.").replace("lora_B.", "")
        assert len(tensor) == rows[layer]
        assert tensor.abs().max() > 0


def test_a_host_is_killed_while_training(pair, model_folder, chat_file, tmp_path):
    """The other one ends within a minute, and its record says who died."""
    processes = start(pair, model_folder, chat_file, tmp_path, "--num_epochs", "5000")
    metrics = tmp_path / "out" / "metrics.jsonl"
    deadline = time.monotonic() + LIMIT
    while not metrics.exists() or len(metrics.read_text().splitlines()) < 20:
        assert time.monotonic() < deadline, words(tmp_path, 0)
        assert all(process.poll() is None for process in processes), words(tmp_path, 0)
        time.sleep(0.1)
    time.sleep(5 * Patience().look)  # so that what it does now has been heard of
    two.kill(processes[1])
    killed = time.monotonic()
    assert end(processes)[0] != 0
    assert time.monotonic() - killed < 60
    told = words(tmp_path, 0)
    assert "error: rank 1 (host second, process " in told
    record = json.loads((tmp_path / "out" / "run.json").read_text())
    assert record["status"] == "failed"
    assert record["error"].startswith("rank 1 (host second, process ")
    # an epoch of so few rows is a step and a report
    assert re.search("last phase of rank 1: (report after )?step ", record["error"])
