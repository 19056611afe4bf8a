"""The script of the README's table on a tiny model: it runs, and sees losses that differ."""

from benchmarks import quickstart


def test_both_sides_have_the_same_losses(model_folder, chat_file, tmp_path, monkeypatch, capsys):
    settings = tmp_path / "run.yaml"
    settings.write_text(
        f"dataset: {chat_file}\nuse_peft: true\nbatching_strategy: padding\n"
        "batch_size_training: 4\ngradient_accumulation_steps: 2\nlr: 0.05\n"
    )
    monkeypatch.setattr(quickstart, "MODEL", str(model_folder))
    monkeypatch.setattr(quickstart, "SETTINGS", settings)
    runs = {side: [quickstart.measure(side, steps=3)] for side in ("ours", "plain")}
    assert quickstart.report(runs) == 0, capsys.readouterr().out
    losses = runs["ours"][0]["losses"]
    assert losses[2] < losses[0] - 0.01
    runs["plain"][0]["losses"][2] += 1e-3
    assert quickstart.report(runs) == 1
