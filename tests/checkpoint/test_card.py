"""The model card: YAML that the hub reads, scores, and the flags that were given."""

import re

import yaml

from ftrecipes.checkpoint.card import model_card
from ftrecipes.config.parse import parse_words

STATE = {"step": 7, "tokens": 1234, "first_eval_loss": 2.5, "last_eval_loss": 1.25}


def card(*words, state=STATE):
    needed = ["--model_name", "org/base", "--dataset", "org/rows", "--output_dir", "nowhere"]
    return model_card(parse_words([*needed, *words]).config, base="org/base", state=state)


def test_the_head_is_yaml_and_the_body_tells_the_run():
    text = card("--use_peft", "--quantization", "4bit", "--lora.r", "4")
    _, head, body = text.split("---\n")
    assert yaml.safe_load(head) == {
        "base_model": "org/base",
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "tags": ["ftrecipes"],
    }
    assert "`org/rows` (lora adapter, base in 4bit while training)" in body
    rows = dict(re.findall(r"^\| (.+) \| (.+) \|$", body, re.MULTILINE))
    assert rows["optimizer steps"] == "7"
    assert rows["trained tokens"] == "1234"
    assert rows["processes"] == "1"
    assert rows["evaluation loss before"] == "2.5000"
    assert rows["evaluation loss after"] == "1.2500"
    given = re.findall(r"^    --(\S+) (.+)$", body, re.MULTILINE)
    assert ("lora.r", "4") in given
    assert "seed" not in dict(given)


def test_a_folder_is_told_by_its_name():
    """The hub refuses a card whose base model is a path."""
    config = parse_words(["--model_name", "org/base", "--dataset", "o/r", "--output_dir", "out"])
    text = model_card(config.config, base="/home/me/my model", state=STATE)
    assert text.startswith("---\nlibrary_name: transformers\n")
    assert "# my model, fine-tuned\n" in text
    assert "/home" not in text


def test_without_evaluation_there_are_no_losses():
    text = card(state=STATE | {"first_eval_loss": None, "last_eval_loss": None})
    assert "library_name: transformers" in text
    assert "every parameter trained" in text
    assert "evaluation loss" not in text
