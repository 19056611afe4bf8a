"""Whole runs on two ranks, one of which has an accident: what is told, noted and saved."""

import json
import re
from pathlib import Path

import pytest

from ftrecipes.config.run_files import STAGING
from tests import ranks, tiny_models
from tests.e2e import runs
from tests.tiny_tokenizers import build_tokenizer

JOB = str(ranks.ROOT / "tests" / "distributed" / "sabotaged_run.py")
LIMIT = 120


@pytest.fixture(scope="module")
def flags(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("sabotage")
    model = tiny_models.save_folder("llama", folder / "model", tokenizer=build_tokenizer("chatml"))
    (folder / "rows.jsonl").write_text(
        "".join(json.dumps(runs.chat(f"Question {n}?", f"Answer {n}.")) + "\n" for n in range(8))
    )
    flags = ["--enable_fsdp", "--use_peft", "--device", "cpu", "--num_epochs", "2"]
    flags += ["--model_name", str(model), "--dataset", str(folder / "rows.jsonl")]
    flags += ["--batching_strategy", "padding", "--batch_size_training", "1"]
    return [*flags, "--data.val_file", str(folder / "rows.jsonl"), "--eval_every_steps", "2"]


def run(folder: Path, flags: list[str], accident: tuple[str, str, str]) -> tuple[list, list[str]]:
    """Exit codes, and what each rank told. The result goes to `folder`."""
    # ranks.start gives the folder as the last word.
    words = [JOB, *accident, *flags, "--output_dir"]
    processes = ranks.start(words, folder, size=2)
    try:
        codes = [process.wait(LIMIT) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return codes, [(folder / f"rank{rank}.log").read_text() for rank in range(2)]


def record(folder: Path) -> dict:
    return json.loads((folder / "run.json").read_text())


def test_an_error_of_one_rank_is_told(tmp_path, flags):
    """It does not save: alone it would meet the other in a collective of another kind."""
    codes, logs = run(tmp_path, flags, ("1", "step 3", "fail"))
    assert codes == [7, 3], logs
    assert "error: rank 1: row 7 is broken\n  do: mend it" in logs[1]
    assert "error: " not in logs[0]
    assert "gloo" not in logs[0] + logs[1]
    assert re.search("rank 1 .* failed(.|\n)*row 7 is broken", record(tmp_path)["error"])


def test_one_rank_is_asked_to_stop_while_the_best_is_saved(tmp_path, flags):
    """All stop after the next step, and what was trained is saved once."""
    codes, logs = run(tmp_path, flags, ("1", "saving the best", "stop"))
    assert codes == [143, 143], logs
    assert logs[0].count("stopped by SIGTERM") == 1
    assert logs[1] == ""
    assert record(tmp_path)["status"] == "interrupted"
    assert (tmp_path / runs.WEIGHTS).exists()


def test_rank_0_is_killed(tmp_path, flags):
    """The other notes how the run ended."""
    codes, logs = run(tmp_path, flags, ("0", "step 3", "kill"))
    assert codes == [-9, 7], logs
    assert "error: rank 0 " in logs[1]
    assert record(tmp_path)["status"] == "failed"
    assert "rank 0" in record(tmp_path)["error"]


def test_a_rank_is_killed_before_the_result_is_written(tmp_path, flags):
    """No half of a result is left."""
    codes, logs = run(tmp_path, flags, ("1", "save the result", "kill"))
    assert codes == [7, -9], logs
    assert "died without an error of its own" in logs[0]
    assert record(tmp_path)["status"] == "failed"
    assert not list(tmp_path.glob(f"{STAGING}*"))
