"""Whole runs on bases of other kinds: quantized mixtures, stored quantized, new tokens, frozen."""

import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

from ftrecipes.commands.generate import answers
from ftrecipes.config.errors import ModelError
from ftrecipes.config.schema import GenerateConfig
from tests import reference, tiny_models
from tests.conftest import write_lines
from tests.e2e.runs import WEIGHTS, chat, lines
from tests.tiny_tokenizers import build_tokenizer

STEPS = {"num_epochs": 3, "lr": 0.05, "warmup_steps": 0}
NEW = ["<plan>", "<act>"]


def ask(folder, prompt: str = "Tell me about rain.") -> list[str]:
    config = GenerateConfig(
        adapter=str(folder), prompt=prompt, max_new_tokens=6, temperature=0.0, device="cpu"
    )
    return [text for _, text in answers(config)]


def test_a_mixture_in_four_bits(finetune, tmp_path):
    """Its experts are quantized, its adapters (on attention and experts) train and answer."""
    base = tiny_models.save_folder(
        "mixtral", tmp_path / "base", tokenizer=build_tokenizer("chatml"), hidden_size=64
    )
    folder = finetune(model_name=base, quantization="4bit", **STEPS)
    losses = [step["loss"] for step in lines(folder, "step")]
    assert losses[-1] < losses[0]
    saved = load_file(folder / WEIGHTS)
    assert any("experts" in name for name in saved)
    assert len(set(ask(folder))) == 2


@pytest.mark.parametrize("bits", ["load_in_4bit", "load_in_8bit"])
def test_a_base_that_is_stored_quantized(finetune, model_folder, tmp_path, bits):
    base = tmp_path / "base"
    settings = BitsAndBytesConfig(**{bits: True})
    AutoModelForCausalLM.from_pretrained(
        model_folder, quantization_config=settings, dtype=torch.float32
    ).save_pretrained(base)
    build_tokenizer("chatml").save_pretrained(base)
    folder = finetune(model_name=base, **STEPS)
    losses = [step["loss"] for step in lines(folder, "step")]
    assert losses[-1] < losses[0]
    named = json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert named == str(base)
    assert len(set(ask(folder))) == 2


@pytest.mark.parametrize("tied", [False, True])
def test_new_tokens_beside_an_adapter_are_saved_with_it(finetune, tmp_path, tied):
    """Read again into a plain base that was enlarged with other random rows, twice."""
    base = tiny_models.save_folder(
        "llama_tied" if tied else "llama",
        tmp_path / "base",
        tokenizer=build_tokenizer("chatml", pad=None),
    )
    data = write_lines(tmp_path / "new.jsonl", [chat("Hi <plan>", "<act> yes <plan>")] * 8)
    flags = {"new_tokens": NEW, "lora.target_modules": "q_proj,v_proj"}
    folder = finetune(model_name=base, dataset=data, num_epochs=2, **flags)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.convert_tokens_to_ids(NEW) == [len(tokenizer) - 2, len(tokenizer) - 1]
    logits = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        model = PeftModel.from_pretrained(model, folder).eval()
        logits.append(reference.row_logits(model, tokenizer("<act> yes <plan>").input_ids))
    assert torch.equal(*logits)
    assert len(ask(folder, "Hi <plan>")) == 2


def test_new_tokens_in_full_fine_tuning(finetune, model_folder, tmp_path):
    data = write_lines(tmp_path / "new.jsonl", [chat("Hi <plan>", "<act> yes <plan>")] * 8)
    folder = finetune(dataset=data, use_peft=False, new_tokens=NEW)
    model, tokenizer = (c.from_pretrained(folder) for c in (AutoModelForCausalLM, AutoTokenizer))
    rows = model.get_input_embeddings().weight.shape[0]
    assert rows == model.config.vocab_size == len(tokenizer)
    assert len(tokenizer) == len(AutoTokenizer.from_pretrained(model_folder)) + 2
    assert len(ask(folder, "Hi <plan>")) == 1


def test_a_tokenizer_of_more_tokens_needs_resize_embeddings(finetune, chat_file, tmp_path):
    """And then trains; before that the run ends without reading weights."""
    tokenizer = build_tokenizer("chatml")
    base = tiny_models.save_folder("llama", tmp_path / "base", tokenizer=tokenizer, vocab_size=50)
    with pytest.raises(ModelError, match="--resize_embeddings"):
        finetune(model_name=base)
    folder = finetune(model_name=base, resize_embeddings=True, output_dir=tmp_path / "wider")
    assert len(ask(folder)) == 2


def test_no_id_without_a_row_is_ever_fed(finetune, tmp_path):
    """No pad token, as many rows as tokens, rows of unequal length: nothing needs a pad id."""
    tokenizer = build_tokenizer("chatml", pad=None)
    base = tiny_models.save_folder("llama", tmp_path / "base", tokenizer=tokenizer)
    highest = []
    hook = torch.nn.modules.module.register_module_forward_pre_hook(
        lambda module, args: (
            highest.append(int(args[0].max()))
            if isinstance(module, torch.nn.Embedding) and args[0].device.type != "meta"
            else None
        )
    )
    try:
        folder = finetune(model_name=base, batching_strategy="padding", batch_size_training=4)
    finally:
        hook.remove()
    assert 0 < max(highest) < len(tokenizer)
    saved = AutoTokenizer.from_pretrained(folder)
    assert (len(saved), saved.pad_token) == (len(tokenizer), None)


def test_frozen_blocks_stay_as_they_were(finetune, model_folder):
    folder = finetune(use_peft=False, freeze_layers=True, num_freeze_layers=1, **STEPS)
    before, after = (load_file(f / "model.safetensors") for f in (model_folder, folder))
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == {n for n in before if n.startswith(("model.embed_tokens", "model.layers.0."))}


def test_too_many_frozen_blocks_are_found_before_weights_are_read(finetune, tmp_path):
    base = tiny_models.save_folder("llama", tmp_path / "b", tokenizer=build_tokenizer("chatml"))
    (base / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="--num_freeze_layers 3: LlamaForCausalLM has 2 blocks"):
        finetune(model_name=base, use_peft=False, freeze_layers=True, num_freeze_layers=3)


def test_a_run_on_the_cpu_asks_no_other_device(finetune, val_file, monkeypatch):
    """Where MPS or XPU claim to be there: numbers of the host only, and no word of a device."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    folder = finetune(**{"data.val_file": val_file})
    text = (folder / "metrics.jsonl").read_text()
    assert "host_" in text
    assert "device_" not in text
    assert [line for line in lines(folder, "evaluation") if line["loss"] > 0]
