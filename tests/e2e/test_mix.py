"""A whole run on two data sets."""

import json

import pytest
import yaml

from ftrecipes.config.errors import ConfigError
from ftrecipes.finetuning import main
from tests.conftest import write_lines
from tests.e2e.runs import chat, lines, status


@pytest.fixture
def two_sets(tmp_path):
    """Twenty dialogs, and four rows of plain text."""
    dialogs = [chat(f"Question {n}", f"Answer {n}") for n in range(20)]
    texts = [{"text": f"Some words, {n} of them."} for n in range(4)]
    names = ("dialogs.jsonl", "texts.jsonl")
    return [
        write_lines(tmp_path / name, rows)
        for name, rows in zip(names, (dialogs, texts), strict=True)
    ]


def test_a_run_on_two_sets(finetune, two_sets, tmp_path, caplog):
    """Sixteen dialogs, and as many texts of the four that are left; each set has its loss."""
    dialogs, texts = two_sets
    with caplog.at_level("INFO", logger="ftrecipes"):
        folder = finetune(
            dataset=f"{dialogs}:0.5,{texts}:0.5",
            batching_strategy="padding",
            batch_size_training=4,
            num_epochs=2,
            lr=1e-2,
            **{"data.val_fraction": 0.25},
        )
    assert status(folder) == "finished"
    steps = lines(folder, "step")
    assert len(steps) == 2 * 30 // 4 + 1  # 15 + 15 rows an epoch
    assert sum(step["rows"] for step in steps) == 60
    for line in (
        f"{dialogs}: 15 rows, 15 drawn an epoch (1.00 times each): 50.0% asked, 50.0% of the rows",
        f"{texts}: 3 rows, 15 drawn an epoch (5.00 times each): 50.0% asked, 50.0% of the rows",
    ):
        assert line in caplog.text
    first, *_, last = lines(folder, "evaluation")
    assert last["rows"] == 6
    for name in (dialogs, texts):
        assert last[f"loss/{name}"] < first[f"loss/{name}"]
    settings = yaml.safe_load((folder / "run.yaml").read_text())
    assert settings["dataset"] == [
        {"name": str(dialogs), "weight": 0.5},
        {"name": str(texts), "weight": 0.5},
    ]
    assert f"`{dialogs}:0.5,{texts}:0.5`" in (folder / "README.md").read_text()
    again = tmp_path / "again"
    main(config=folder / "run.yaml", output_dir=again)
    losses = [[step["loss"] for step in lines(one, "step")] for one in (folder, again)]
    assert losses[0] == losses[1]
    prints = [json.loads((one / "run.json").read_text()) for one in (folder, again)]
    assert prints[0]["train_fingerprint"] == prints[1]["train_fingerprint"]


def test_a_list_of_sets(finetune, two_sets):
    """Without weights every row once; a cap and a setting of one set."""
    dialogs, texts = two_sets
    own = {"path": dialogs, "max_rows": 6, "train_on": "all"}
    folder = finetune(dataset=[own, texts], batching_strategy="padding", num_epochs=3)
    assert sum(step["rows"] for step in lines(folder, "step")) == 3 * 10
    assert lines(folder, "evaluation") == []


def test_faults_of_a_mix_end_the_run_before_anything_is_loaded(finetune, two_sets, tmp_path):
    dialogs, texts = two_sets
    with pytest.raises(ConfigError) as caught:
        finetune(model_name=tmp_path / "none", dataset=f"{dialogs}:0,{texts}:x,gone.jsonl")
    assert len(caught.value.faults) == 5
