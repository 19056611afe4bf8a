"""Whole runs that checkpoint, in every way: the same losses, and the same adapter to the byte."""

import json
import shutil
from pathlib import Path

import pytest

from ftrecipes.commands.finetune import main
from tests import tiny_models
from tests.e2e.runs import WEIGHTS, lines
from tests.tiny_tokenizers import build_tokenizer

METHOD = "activation_checkpointing"
TARGET, EVERY_N, OFFLOAD = (f"{METHOD}.{name}" for name in ("target", "every_n", "offload"))
BLOCKS = "model.layers.{0-3} (LlamaDecoderLayer)"
# way -> flags, what the log says is computed again
WAYS = {
    "full": ({METHOD: "full"}, BLOCKS),
    "gradient_checkpointing": ({"gradient_checkpointing": True}, BLOCKS),
    "selective": ({METHOD: "selective"}, f"{BLOCKS}; selective"),
    "target": (
        {TARGET: '{"attention": "first-2, last-1", "mlp": [1]}'},
        "model.layers.{0,1,3}.self_attn (LlamaAttention), model.layers.1.mlp (LlamaMLP)",
    ),
    "list": (
        {TARGET: '["attention", "mlp"]'},
        "model.layers.{0-3}.self_attn (LlamaAttention), model.layers.{0-3}.mlp (LlamaMLP)",
    ),
    "every_n": ({EVERY_N: 2}, "model.layers.{0,2} (LlamaDecoderLayer)"),
    "offload": ({OFFLOAD: True}, f"{BLOCKS}; inputs in the memory of the host"),
}
MARK = "checkpointed: "


@pytest.fixture(scope="module")
def deep_folder(tmp_path_factory) -> Path:
    """A tiny Llama of four blocks."""
    folder = tmp_path_factory.mktemp("models") / "deep"
    tokenizer = build_tokenizer("chatml")
    return tiny_models.save_folder("llama", folder, tokenizer=tokenizer, num_hidden_layers=4)


@pytest.fixture
def finetune_deep(finetune, deep_folder, tmp_path):
    """Two steps with dropout: (losses, bytes of the adapter)."""

    def run(name: str, **flags) -> tuple[list[float], bytes]:
        usual = {"model_name": deep_folder, "output_dir": tmp_path / name, "lr": 1e-2}
        usual |= {"batching_strategy": "padding", "max_train_step": 2, "lora.lora_dropout": 0.3}
        folder = finetune(**usual | flags)
        return [line["loss"] for line in lines(folder, "step")], (folder / WEIGHTS).read_bytes()

    return run


@pytest.mark.parametrize("sharded", [False, True], ids=["alone", "fsdp"])
def test_every_way_trains_the_same(finetune_deep, caplog, sharded):
    """Seeded, in float32 on a CPU: the same kernels run on the same numbers."""
    fsdp = {"enable_fsdp": True} if sharded else {}
    expected = finetune_deep("none", **fsdp, **{METHOD: "none"})
    assert len(expected[0]) == 2
    for name, (flags, told) in WAYS.items():
        caplog.clear()
        with caplog.at_level("INFO", logger="ftrecipes"):
            assert finetune_deep(name, **fsdp, **flags) == expected, name
        assert [line for line in caplog.messages if line.startswith(MARK)] == [MARK + told]


def test_nothing_is_computed_again_unless_asked(finetune_deep, caplog):
    with caplog.at_level("INFO", logger="ftrecipes"):
        finetune_deep("usual")
    assert not [line for line in caplog.messages if line.startswith(MARK)]


@pytest.fixture(scope="module")
def no_weights(deep_folder, tmp_path_factory) -> Path:
    """The model's folder without its weights: whoever reads them fails with another error."""
    folder = tmp_path_factory.mktemp("models") / "no weights"
    shutil.copytree(deep_folder, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    return folder


@pytest.mark.parametrize(
    ("words", "reasons"),
    [
        (
            [f"--{TARGET}", '{"block": [1, 2], "attention": "last-2"}'],
            ["model.layers.2.self_attn", "model.layers.2 "],
        ),
        ([f"--{TARGET}", "lamaMLP"], ["lamaMLP", "LlamaMLP"]),
        ([f"--{TARGET}", '{"mlp": "range-5-99"}'], ["range-5-99", "from 0 to 3"]),
        ([f"--{TARGET}", "range-5-99"], ["range-5-99", "attention, mlp"]),
        (
            [f"--{METHOD}", "full", "--gradient_checkpointing"],
            ["--gradient_checkpointing", f"--{METHOD} full", "both"],
        ),
        ([f"--{METHOD}", "none", f"--{TARGET}", "mlp"], [f"--{METHOD} none", f"--{TARGET}"]),
        ([f"--{TARGET}", "mlp", f"--{EVERY_N}", "2"], [f"--{TARGET}", f"--{EVERY_N}"]),
    ],
)
def test_what_can_not_be_meant_ends_the_run_before_weights_are_read(
    words, reasons, no_weights, chat_file, tmp_path, capsys
):
    usual = ["--model_name", str(no_weights), "--dataset", str(chat_file), "--use_peft"]
    usual += ["--output_dir", str(tmp_path / "out"), "--device", "cpu"]
    with pytest.raises(SystemExit) as caught:
        main([*usual, *words])
    told = capsys.readouterr().err
    assert caught.value.code == 2, told
    assert [reason for reason in reasons if reason not in told] == [], told
    assert "Traceback" not in told


def test_a_folder_that_says_what_was_checkpointed_runs_again(finetune_deep, tmp_path):
    """run.yaml keeps the target as it was given."""
    first = finetune_deep("first", **{TARGET: '{"mlp": "range-1-3"}'})
    again = finetune_deep("again", config=tmp_path / "first" / "run.yaml")
    assert again == first
    assert json.loads((tmp_path / "again" / "run.json").read_text())["status"] == "finished"
