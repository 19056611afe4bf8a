"""Nothing trained is lost, whatever ends the run; and nobody else's result is touched."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from ftrecipes import finetuning
from ftrecipes.config.errors import ConfigError, DataError
from ftrecipes.train import loop

WEIGHTS = "adapter_model.safetensors"


def flags(model_folder, chat_file, folder, **changes):
    settings = {
        "model_name": str(model_folder),
        "dataset": str(chat_file),
        "output_dir": str(folder),
        "use_peft": True,
        "batching_strategy": "padding",
        "lr": 1e-2,
    }
    return settings | changes


def status(folder: Path) -> str:
    return json.loads((folder / "run.json").read_text())["status"]


def start(settings: dict) -> subprocess.Popen:
    words = [f"--{name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "ftrecipes", "finetune", *words]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def wait_for_steps(folder: Path, count: int) -> None:
    end = time.monotonic() + 120
    metrics = folder / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count('"step"') < count:
        assert time.monotonic() < end, "the run never got to its steps"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_with_its_work_saved(number, model_folder, chat_file, tmp_path):
    folder = tmp_path / "out"
    process = start(flags(model_folder, chat_file, folder, num_epochs=100000))
    try:
        wait_for_steps(folder, 6)
        second = start(flags(model_folder, chat_file, folder, overwrite_output_dir=True))
        assert second.wait(timeout=120) == 2
        assert "another run is writing there" in second.stderr.read()
        process.send_signal(number)
        process.send_signal(number)  # while the result is being saved
        assert process.wait(timeout=120) == 128 + number
    finally:
        process.kill()
    assert "Traceback" not in process.stderr.read()
    assert all(tensor.abs().sum() > 0 for tensor in load_file(folder / WEIGHTS).values())
    assert status(folder) == "interrupted"


def test_any_failure_in_training_saves_the_steps_before_it(
    model_folder, chat_file, tmp_path, monkeypatch
):
    folder = tmp_path / "out"
    honest = loop.train_step

    def fail_in_step_3(*arguments, step, **keywords):
        if step == 3:
            raise RuntimeError("out of memory, say")
        return honest(*arguments, step=step, **keywords)

    monkeypatch.setattr(loop, "train_step", fail_in_step_3)
    with pytest.raises(RuntimeError, match="out of memory, say"):
        finetuning.main(**flags(model_folder, chat_file, folder))
    monkeypatch.undo()
    assert status(folder) == "failed"
    assert "out of memory, say" in (folder / "error.txt").read_text()
    two_steps = tmp_path / "two steps"
    settings = flags(model_folder, chat_file, two_steps, scheduler="constant", max_train_step=2)
    finetuning.main(**settings)
    stopped = tmp_path / "stopped"
    monkeypatch.setattr(loop, "train_step", fail_in_step_3)
    with pytest.raises(RuntimeError):
        finetuning.main(**flags(model_folder, chat_file, stopped, scheduler="constant"))
    wanted, got = load_file(two_steps / WEIGHTS), load_file(stopped / WEIGHTS)
    assert all(wanted[name].equal(got[name]) for name in wanted)


def test_a_run_that_fails_leaves_an_earlier_result_with_its_own_record(
    model_folder, chat_file, tmp_path
):
    folder = tmp_path / "out"
    settings = flags(model_folder, chat_file, folder, max_train_step=1)
    finetuning.main(**settings)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    again = {"overwrite_output_dir": True, "quantization": "4bit", "lora.r": 2}
    with pytest.raises(DataError):
        finetuning.main(**settings | again | {"dataset": str(empty)})
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert after == before
    assert status(folder / ".running") == "failed"
    finetuning.main(**settings | again | {"save_model": False})
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert after == before
    finetuning.main(**settings | again)
    assert status(folder) == "finished"
    assert json.loads((folder / "adapter_config.json").read_text())["r"] == 2
    assert "method: 4bit" in (folder / "run.yaml").read_text()
    assert not (folder / ".running").exists()
    with pytest.raises(ConfigError, match="holds an earlier result"):
        finetuning.main(**settings)


def test_a_data_set_that_changes_the_working_directory_moves_no_result(
    model_folder, tmp_path, monkeypatch
):
    (tmp_path / "rows.py").write_text(
        "import os\n"
        "def get_custom_dataset(config, tokenizer, split):\n"
        "    os.makedirs('elsewhere', exist_ok=True)\n"
        "    os.chdir('elsewhere')\n"
        "    return [{'instruction': 'a', 'output': 'b'}] if split == 'train' else None\n"
    )
    monkeypatch.chdir(tmp_path)
    settings = flags(model_folder, "custom_dataset", "out", max_train_step=1)
    finetuning.main(**settings | {"custom_dataset.file": str(tmp_path / "rows.py")})
    assert (tmp_path / "out" / WEIGHTS).exists()
    assert status(tmp_path / "out") == "finished"
    assert not list((tmp_path / "elsewhere").rglob("out"))


def test_a_result_that_could_not_be_saved_is_told_before_training(
    model_folder, chat_file, tmp_path, monkeypatch
):
    folder = tmp_path / "out"
    usage = type("Usage", (), {"free": 100})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(Exception, match="too full"):
        finetuning.main(**flags(model_folder, chat_file, folder))
    assert not (folder / "metrics.jsonl").exists()
