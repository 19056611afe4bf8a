"""Chat templates by name and from a file: what they write, what is trained, what is saved."""

import logging
import re
from pathlib import Path

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from ftrecipes.config.chat_templates import BUILT_IN
from ftrecipes.config.errors import DataError
from ftrecipes.config.sections import DataConfig
from ftrecipes.data import built_in_templates
from ftrecipes.data.built_in_templates import settle_chat_template
from ftrecipes.data.readers import alpaca_prompt
from tests.data.dialogs import chat, rows_of, tokenize, trained_text
from tests.tiny_tokenizers import build_tokenizer

# Of a dialog with a system text, written down from the public formats; what is trained in braces.
EXPECTED = {
    "chatml": "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    "<|im_start|>assistant\n{Yo<|im_end|>}\n<|im_start|>user\nAnd?<|im_end|>\n"
    "<|im_start|>assistant\n{No<|im_end|>}\n",
    "llama3": "<|begin|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n{Yo<|eot_id|>}"
    "<|start_header_id|>user<|end_header_id|>\n\nAnd?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n{No<|eot_id|>}",
    "mistral": "<s>[INST] S\n\nHi [/INST]{ Yo</s>}[INST] And? [/INST]{ No</s>}",
    "gemma": "<bos><start_of_turn>user\nS\n\nHi<end_of_turn>\n"
    "<start_of_turn>model\n{Yo<end_of_turn>}\n<start_of_turn>user\nAnd?<end_of_turn>\n"
    "<start_of_turn>model\n{No<end_of_turn>}\n",
    "zephyr": "<|system|>\nS</s>\n<|user|>\nHi</s>\n<|assistant|>\n{Yo</s>}\n"
    "<|user|>\nAnd?</s>\n<|assistant|>\n{No</s>}\n",
    "alpaca": "S\n\n### Instruction:\nHi\n\n### Response:{Yo</s>}"
    "\n\n### Instruction:\nAnd?\n\n### Response:{No</s>}",
}
# The tokenizer whose marks it writes; of a base model for those that need none.
FAMILY = {"zephyr": "none", "alpaca": "none"}
OPENED = ("llama3", "mistral", "gemma")


def base_tokenizer(name: str, *, add_bos: bool):
    tokenizer = build_tokenizer(FAMILY.get(name, name))
    tokenizer.chat_template = None
    if add_bos:
        # as tokenizers in the wild do
        bos, bos_id = tokenizer.bos_token, tokenizer.bos_token_id
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, bos_id)]
        )
    return tokenizer


def test_the_names_are_those_of_the_files():
    folder = Path(built_in_templates.__file__).parent / "templates"
    assert sorted(path.stem for path in folder.iterdir()) == sorted(BUILT_IN)
    assert EXPECTED.keys() == set(BUILT_IN)


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_is_written_and_trained(name):
    tokenizer = base_tokenizer(name, add_bos=name in OPENED)
    settle_chat_template(tokenizer, DataConfig(chat_template=name))
    row = chat("Hi", "Yo", "And?", "No", system="S")
    whole = EXPECTED[name].replace("{", "").replace("}", "")
    assert tokenizer.apply_chat_template(row["messages"], tokenize=False) == whole
    expected = "".join(re.findall(r"{(.*?)}", EXPECTED[name]))
    [(ids, labels)] = rows_of(tokenize([row], tokenizer))
    assert trained_text(tokenizer, labels) == expected
    assert ids.count(tokenizer.bos_token_id) == (name in OPENED)
    prompt = tokenizer.apply_chat_template(
        row["messages"][:-1], add_generation_prompt=True, tokenize=False
    )
    assert tokenizer.apply_chat_template(row["messages"], tokenize=False).startswith(prompt)


@pytest.mark.parametrize("name", BUILT_IN)
def test_bos_is_written_where_the_tokenizer_itself_does(name):
    for add_bos in (False, True):
        tokenizer = base_tokenizer(name, add_bos=add_bos)
        settle_chat_template(tokenizer, DataConfig(chat_template=name))
        [(ids, _)] = rows_of(tokenize([chat("Hi", "Yo")], tokenizer))
        assert (ids[0] == tokenizer.bos_token_id) == add_bos


def test_alpaca_is_the_prompt_of_rows_without_a_template():
    tokenizer = base_tokenizer("alpaca", add_bos=False)
    settle_chat_template(tokenizer, DataConfig(chat_template="alpaca"))
    messages = chat("Add one to one.")["messages"]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert text == alpaca_prompt("Add one to one.")


def test_the_end_of_answers_becomes_the_end_token_and_is_saved(tmp_path, caplog):
    tokenizer = build_tokenizer("none")
    tokenizer.add_tokens(["<|im_start|>", "<|im_end|>"])
    with caplog.at_level(logging.INFO, logger="ftrecipes"):
        settle_chat_template(tokenizer, DataConfig(chat_template="chatml"))
    assert tokenizer.eos_token == "<|im_end|>"
    assert [r.getMessage() for r in caplog.records] == [
        "answers end with <|im_end|>, which is the tokenizer's end token from now on (it was </s>)"
    ]
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert (again.eos_token, again.chat_template) == ("<|im_end|>", tokenizer.chat_template)
    assert len(again) == len(tokenizer)


@pytest.mark.parametrize("name", ["zephyr", "mistral", "alpaca", "chatml"])
def test_the_end_token_stays_where_answers_end_with_it_or_with_none(name, caplog):
    tokenizer = build_tokenizer("none")
    settle_chat_template(tokenizer, DataConfig(chat_template=name))
    assert tokenizer.eos_token == "</s>"
    assert caplog.records == []


def test_a_file_replaces_all_templates_of_the_tokenizer(tmp_path):
    path = tmp_path / "mine.jinja"
    path.write_text("{% for m in messages %}{{ m.role + m.content + eos_token }}{% endfor %}\n")
    tokenizer = build_tokenizer("chatml")
    tokenizer.chat_template = {"default": "{{ 1 }}", "tool_use": "{{ 2 }}"}
    settle_chat_template(tokenizer, DataConfig(chat_template=str(path)))
    assert tokenizer.chat_template == path.read_text()
    settle_chat_template(tokenizer, DataConfig())
    assert tokenizer.chat_template == path.read_text()


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"{% for m in messages %}\n{{ m.content }\n", "not a template(.|\n)*line 2"),
        (b"\xff\xfe", "can not be read"),
    ],
)
def test_files_that_are_no_templates(tmp_path, content, fault):
    path = tmp_path / "mine.jinja"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"--data.chat_template .*mine.jinja: {fault}"):
        settle_chat_template(build_tokenizer("none"), DataConfig(chat_template=str(path)))


def test_a_template_that_refuses_the_trial_is_kept_for_the_rows_to_judge(tmp_path):
    path = tmp_path / "mine.jinja"
    path.write_text("{% if messages | length < 3 %}{{ raise_exception('no') }}{% endif %}")
    tokenizer = build_tokenizer("none")
    settle_chat_template(tokenizer, DataConfig(chat_template=str(path)))
    assert tokenizer.eos_token == "</s>"


def test_dialogs_without_a_template_are_told_of_those_that_are_there():
    with pytest.raises(DataError, match=r"--data.chat_template alpaca or chatml or .*FILE.jinja"):
        tokenize([chat("Hi", "Yo")], build_tokenizer("none"))


def test_the_documentation_names_each_of_them():
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    section = page.partition("## Chat templates\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)`", section, re.MULTILINE) == list(BUILT_IN)
