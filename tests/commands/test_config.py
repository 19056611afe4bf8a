"""`ftrecipes config` writes nothing, so that nothing is in its way."""

import re

import pytest

from ftrecipes.commands import config, finetune


def test_a_run_that_is_over_can_be_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "model.safetensors").write_text("x")
    (tmp_path / "out" / "run.yaml").write_text("model_name: o/m\ndataset: o/d\noutput_dir: out\n")
    with pytest.raises(SystemExit) as ended:
        config.main(["--config", "out/run.yaml"])
    shown = capsys.readouterr()
    assert (ended.value.code, shown.err) == (0, "")
    assert re.search(r"^output_dir: out +# out/run.yaml$", shown.out, re.MULTILINE)
    with pytest.raises(SystemExit) as ended:
        finetune.main(["--config", "out/run.yaml"])
    assert ended.value.code == 2
    assert "--overwrite_output_dir" in capsys.readouterr().err
