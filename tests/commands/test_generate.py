"""Answers with and without an adapter: the prompt of training, the base as it was trained on."""

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ftrecipes.commands.generate import answers, prompt_ids, trained_with
from ftrecipes.config.errors import ConfigError
from ftrecipes.config.schema import GenerateConfig
from ftrecipes.finetuning import main
from tests.reference import row_logits
from tests.tiny_tokenizers import build_tokenizer

PROMPT = "Tell me about rain."
TOKENS = 6


@pytest.fixture(scope="module")
def runs(model_folder, chat_file, tmp_path_factory):
    """Folders of an adapter on 4-bit weights, and of a full fine-tuning."""
    folder = tmp_path_factory.mktemp("runs")
    usual = {"model_name": model_folder, "dataset": chat_file, "device": "cpu"}
    usual |= {"max_train_step": 2, "lr": 0.05, "warmup_steps": 0}
    main(**usual, output_dir=folder / "adapter", use_peft=True, quantization="4bit")
    main(**usual, output_dir=folder / "full")
    return folder


def greedy(model, tokenizer, prompt: str) -> str:
    """The likeliest token, one after another, by plain forwards."""
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], add_generation_prompt=True
    )["input_ids"]
    start = len(ids)
    for _ in range(TOKENS):
        with torch.no_grad():
            ids = [*ids, row_logits(model, ids)[-1].argmax().item()]
        if ids[-1] == tokenizer.eos_token_id:
            break
    return tokenizer.decode(ids[start:], skip_special_tokens=True)


def ask(**settings) -> dict[str, str]:
    config = GenerateConfig(prompt=PROMPT, max_new_tokens=TOKENS, device="cpu", **settings)
    return dict(answers(config))


def test_a_base_model_answers_as_plain_greedy_decoding(model_folder):
    [(title, text)] = ask(model_name=str(model_folder)).items()
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    assert title == str(model_folder)
    assert text == greedy(model, AutoTokenizer.from_pretrained(model_folder), PROMPT) != ""


def test_a_whole_fine_tuned_model_answers_alone(runs, model_folder):
    [(_, text)] = ask(adapter=str(runs / "full")).items()
    model = AutoModelForCausalLM.from_pretrained(runs / "full", dtype=torch.float32)
    assert text == greedy(model, AutoTokenizer.from_pretrained(model_folder), PROMPT)
    assert text != ask(model_name=str(model_folder)).popitem()[1]


def test_an_adapter_answers_on_the_base_it_was_trained_on(runs, model_folder):
    config = trained_with(runs / "adapter")
    assert (config.quantization.method, config.train.use_peft) == ("4bit", True)
    both = ask(adapter=str(runs / "adapter"))
    assert list(both) == [
        f"without the adapter: {model_folder}",
        f"with the adapter: {runs / 'adapter'}",
    ]
    assert len(set(both.values())) == 2
    alone = ask(adapter=str(runs / "adapter"), compare=False)
    assert alone == dict([both.popitem()])


def test_an_adapter_of_another_tool_takes_the_defaults(tmp_path):
    (tmp_path / "adapter_config.json").write_text(json.dumps({}))
    assert trained_with(tmp_path).quantization.method == "none"


def test_sampling_follows_the_seed(model_folder):
    first, again, other = (
        ask(model_name=str(model_folder), temperature=1.5, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_a_system_text_needs_a_template():
    tokenizer = build_tokenizer("chatml")
    ids = prompt_ids(tokenizer, "Hi", system="SPEAK FRENCH")
    assert tokenizer.decode(ids).startswith("<|im_start|>system\nSPEAK FRENCH<|im_end|>")
    with pytest.raises(ConfigError, match="--system"):
        prompt_ids(build_tokenizer("none"), "Hi", system="SPEAK FRENCH")


def test_the_tokenizer_beside_the_adapter_is_the_one_that_speaks(runs, model_folder, tmp_path):
    """Its template may differ from that of the base model."""
    shutil.copytree(runs / "adapter", tmp_path / "copy")
    template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    (tmp_path / "copy" / "chat_template.jinja").write_text(template)
    title = f"without the adapter: {model_folder}"
    first, second = (ask(adapter=str(f))[title] for f in (runs / "adapter", tmp_path / "copy"))
    assert first != second
