"""Samples: what the live model answers, when, and that training does not notice."""

import json
from dataclasses import replace

import peft
import pytest
import torch

from ftrecipes.config.schema import RunConfig, SamplesConfig, TrainConfig
from ftrecipes.data.prompts import Prompt
from ftrecipes.model.attention import ROW_ATTENTION
from ftrecipes.model.generation import attention_of
from ftrecipes.train.build import open_training
from ftrecipes.train.loop import train
from ftrecipes.train.state import TrainState
from tests import reference, tiny_models
from tests.model.routes import token_rows
from tests.tiny_tokenizers import build_tokenizer
from tests.train.toy import FLOAT32, WORLD

IDS = (5, 9, 2, 17)
PROMPTS = [Prompt("first", IDS, 6), Prompt("second", (8, 3), 3)]
STEPS = 6


def adapted(family: str):
    """LoRA with dropout, so that a random number too many would be seen."""
    torch.manual_seed(0)
    settings = peft.LoraConfig(
        task_type="CAUSAL_LM", r=4, lora_alpha=64, lora_dropout=0.3, target_modules="all-linear"
    )
    return peft.get_peft_model(tiny_models.build(family), settings)


def run(folder, model, *, prompts=(), every_steps=0, **settings):
    """Metrics of two epochs of three steps, and the training."""
    folder.mkdir(exist_ok=True)
    usual = {"batching_strategy": "padding", "batch_size_training": 2, "num_epochs": 2}
    usual |= {"lr": 0.05, "warmup_steps": 0, "scheduler": "constant"}
    config = RunConfig(
        train=replace(TrainConfig(), **usual | settings),
        samples=SamplesConfig(every_steps=every_steps),
    )
    torch.manual_seed(1)
    with open_training(
        *(config, model, token_rows(tiny_models.random_rows([9, 12, 7, 16, 11, 9])), None),
        tokenizer=build_tokenizer("chatml"),
        prompts=prompts,
        metrics=folder / "metrics.jsonl",
        precision=FLOAT32,
        world=WORLD,
        state=TrainState(),
    ) as training:
        train(training)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return lines, training


def of_kind(lines, kind):
    return [line for line in lines if line["kind"] == kind]


def greedy(model, ids, count: int) -> str:
    """The likeliest token, one after another, each from a whole forward of the model."""
    tokenizer = build_tokenizer("chatml")
    model.eval()
    ids, start = list(ids), len(ids)
    for _ in range(count):
        with torch.no_grad():
            ids.append(reference.row_logits(model, ids)[-1].argmax().item())
        if ids[-1] == model.generation_config.eos_token_id:
            break
    return tokenizer.decode(ids[start:], skip_special_tokens=True)


@pytest.mark.parametrize(("family", "flat"), [("llama", True), ("bloom", False)])
def test_training_does_not_notice(tmp_path, family, flat):
    """The same losses bit for bit, with dropout, on either route; and attention is as it was."""
    lines, training = run(tmp_path / "with", adapted(family), prompts=PROMPTS, every_steps=2)
    plain, _ = run(tmp_path / "without", adapted(family))
    assert training.batch_loss.route.flat is flat
    assert (attention_of(training.batch_loss.model) == ROW_ATTENTION) is flat
    losses = [line["loss"] for line in of_kind(lines, "step")]
    assert len(losses) == STEPS
    assert losses == [line["loss"] for line in of_kind(plain, "step")]
    assert training.batch_loss.model.training
    assert of_kind(plain, "sample") == []


@pytest.mark.parametrize(
    ("every_steps", "settings", "expected"),
    [
        (0, {}, [0, 3, 6]),
        (2, {}, [0, 2, 4, 6]),
        (4, {}, [0, 4, 6]),
        (100, {}, [0, 6]),
        (0, {"max_train_step": 4}, [0, 3, 4]),
        (3, {"max_train_step": 3}, [0, 3]),
    ],
)
def test_samples_come_as_asked_and_never_twice_after_a_step(
    tmp_path, every_steps, settings, expected
):
    lines, _ = run(
        *(tmp_path, tiny_models.build("llama")),
        prompts=PROMPTS[1:],
        every_steps=every_steps,
        **settings,
    )
    samples = of_kind(lines, "sample")
    assert [line["step"] for line in samples] == expected
    assert {line["prompt"] for line in samples} == {"second"}


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_the_answers_are_those_of_plain_greedy_decoding(tmp_path, family):
    """Before, of the untouched model; after the last step, of the trained one."""
    before = tiny_models.build(family)
    lines, training = run(tmp_path, tiny_models.build(family), prompts=PROMPTS)
    model = training.batch_loss.model
    after = tiny_models.build(family)
    after.load_state_dict(model.state_dict())
    found = {(line["step"], line["prompt"]): line["answer"] for line in of_kind(lines, "sample")}
    for step, answering in ((0, before), (STEPS, after)):
        for prompt in PROMPTS:
            expected = greedy(answering, prompt.ids, prompt.max_new_tokens)
            assert found[step, prompt.text] == expected
    assert found[0, "first"] != found[STEPS, "first"], "such training changes an answer"


def test_an_adapter_that_is_a_prompt_answers_too(tmp_path):
    """Beside plain forwards of PEFT, which put the learned positions in front."""
    torch.manual_seed(0)
    settings = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    model = peft.get_peft_model(tiny_models.build("llama"), settings)
    lines, training = run(tmp_path, model, prompts=PROMPTS, lr=3.0)
    model = training.batch_loss.model.eval()
    [found] = [
        line["answer"]
        for line in of_kind(lines, "sample")
        if (line["step"], line["prompt"]) == (STEPS, "first")
    ]
    ids = list(IDS)
    for _ in range(6):
        with torch.no_grad():
            ids.append(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax().item())
    tokens = build_tokenizer("chatml").decode(ids[len(IDS) :], skip_special_tokens=True)
    assert found == tokens


def test_no_random_number_is_drawn(tmp_path):
    _, training = run(tmp_path, adapted("llama"), prompts=PROMPTS)
    before = torch.get_rng_state()
    assert len(list(training.sampler.answers())) == len(PROMPTS)
    assert torch.equal(torch.get_rng_state(), before)
