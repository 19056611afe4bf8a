"""`ftrecipes prepare` as one types it, and runs that start from what it wrote."""

import json

import pytest

from ftrecipes.commands import prepare
from ftrecipes.finetuning import main
from tests.conftest import write_lines
from tests.data.dialogs import chat


@pytest.fixture
def run(model_folder, capsys):
    """Exit code and standard error of `ftrecipes prepare`."""

    def run_words(*words):
        with pytest.raises(SystemExit) as ended:
            prepare.main(["--model_name", str(model_folder), *map(str, words)])
        return ended.value.code, capsys.readouterr().err

    return run_words


def train(model_folder, dataset, folder):
    """Lines of metrics.jsonl without what the clock says."""
    main(
        model_name=str(model_folder),
        dataset=str(dataset),
        output_dir=str(folder),
        use_peft="true",
        max_train_step="3",
        context_length="64",
    )
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [(line["loss"], line["num_tokens"]) for line in lines if line["kind"] == "step"]
    record = json.loads((folder / "run.json").read_text())
    return losses, record["train_fingerprint"]


def test_a_run_on_prepared_rows_is_the_run_on_the_rows(run, model_folder, tmp_path):
    rows = [chat(f"q {n}", f"a {n}") for n in range(9)]
    path = write_lines(tmp_path / "train.jsonl", rows)
    code, err = run("--dataset", path, "--context_length", 64, "--to", tmp_path / "rows")
    assert (code, f"--dataset {tmp_path / 'rows'}" in err) == (0, True)
    assert "Traceback" not in err
    losses, fingerprint = train(model_folder, path, tmp_path / "first")
    assert len(losses) == 3
    assert train(model_folder, tmp_path / "rows", tmp_path / "second") == (losses, fingerprint)


def test_faulty_rows_leave_no_folder(run, tmp_path):
    path = write_lines(tmp_path / "train.jsonl", [chat("q", "a"), chat("only a question")])
    code, err = run("--dataset", path, "--to", tmp_path / "rows")
    assert code == 3
    assert "1 of 2 rows can not be used" in err
    assert [file.name for file in tmp_path.iterdir()] == ["train.jsonl"]


def test_what_is_prepared_is_not_prepared_again(run, tmp_path):
    path = write_lines(tmp_path / "train.jsonl", [chat("q", "a")] * 3)
    assert run("--dataset", path, "--to", tmp_path / "rows")[0] == 0
    code, err = run("--dataset", tmp_path / "rows", "--to", tmp_path / "again")
    assert code == 2
    assert "is prepared already" in err
