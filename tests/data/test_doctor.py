"""The check of template and rows: each kind of finding has a fault here that shows it."""

import re
from pathlib import Path

import pytest
from tokenizers.processors import TemplateProcessing

from ftrecipes.config.sections import DataConfig
from ftrecipes.data.built_in_templates import settle_chat_template
from ftrecipes.data.findings import KINDS
from tests.data.dialogs import chat
from tests.data.examined import findings_of
from tests.data.tool_dialogs import ASKED
from tests.tiny_templates import QWEN
from tests.tiny_tokenizers import CHATML, LLAMA3, build_tokenizer

THOUGHT = "<think>\nhm, well\n</think>\n\nyes"
ECHO = (
    "{% set ns = namespace(asked='') %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% set ns.asked = m.content %}"
    "{% else %}<|im_start|>{{ ns.asked }}<|im_end|>{{ m.content }}<|im_end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}"
)
# The prompt ends with a blank that the first word of an answer takes to itself.
ASK = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ m.content + ': ' }}"
    "{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}"
)


def made(family, template=None, **options):
    tokenizer = build_tokenizer(family, **options)
    if template is not None:
        tokenizer.chat_template = template
    return tokenizer


def named(family, name, *, opens=False):
    """With a template that was asked for; `opens`: the tokenizer puts BOS before texts."""
    tokenizer = build_tokenizer(family)
    settle_chat_template(tokenizer, DataConfig(chat_template=name))
    return opening(tokenizer) if opens else tokenizer


def opening(tokenizer):
    bos = tokenizer.bos_token
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, tokenizer.bos_token_id)]
    )
    return tokenizer


def masked_by_pad(tokenizer):
    """Tokenised rows as a collator makes them that masks the id of the pad token."""
    ids = tokenizer.apply_chat_template(chat("Hi", "Hello")["messages"])["input_ids"]
    end = tokenizer.eos_token_id
    last = len(ids) - 1 - ids[::-1].index(end)
    labels = [-100] * len(ids)
    labels[last - 3 : last] = ids[last - 3 : last]
    return {"input_ids": ids, "labels": labels}


def whole_dialog(tokenizer):
    return {"text": tokenizer.apply_chat_template(chat("Hi", "Yo")["messages"], tokenize=False)}


CHATML_TOKENIZER = build_tokenizer("chatml")
TIMED = LLAMA3.replace("{{ bos_token }}", "{{ bos_token }}{{ strftime_now('%f') }}")
# Code -> tokenizer, rows, settings, and what the finding says.
FAULTS = {
    "user-words-trained": (
        made("chatml", ECHO),
        [chat("What is it?", "Paris")],
        {},
        r"words of messages\[0\] \(role user\) are trained",
    ),
    "marks-trained": (
        CHATML_TOKENIZER,
        [whole_dialog(CHATML_TOKENIZER)],
        {},
        r"<\|im_start\|>, which opens the turn of a user, is trained in 1 of 1 rows",
    ),
    "no-end-token": (made("no_end"), [chat("Hi", "Yo")], {}, "1 of 1 rows end without an end"),
    "end-in-pieces": (
        named("none", "chatml"),
        [chat("Hi", "Yo")],
        {"chat_template": "chatml"},
        r"<\|im_end\|> ends the answer and is \d+ tokens",
    ),
    "end-not-trained": (
        CHATML_TOKENIZER,
        [masked_by_pad(CHATML_TOKENIZER)],
        {},
        "in 1 of 1 rows the end token behind an answer has no label",
    ),
    "answer-cut": (
        CHATML_TOKENIZER,
        [chat("Hi", "Yo"), chat("Hi", "long " * 60)],
        {"context_length": 64},
        "answers of 1 of 2 rows are cut by --context_length 64",
    ),
    "prompt-too-long": (
        CHATML_TOKENIZER,
        [chat("Hi", "Yo"), chat("why " * 150, "yes")],
        {"context_length": 256},
        r"prompts of 1 of 2 rows fill all of --context_length 256 \(.* has [3-9]\d\d positions\)",
    ),
    "bos-repeated": (
        made("llama3", "{{ bos_token }}" + LLAMA3),
        [chat("Hi", "Yo")],
        {},
        r"<\|begin\|> stands where no row begins in 1 of 1 rows",
    ),
    "no-bos": (
        opening(made("chatml")),
        [chat("Hi", "Yo")],
        {"chat_template": "mine.jinja"},
        r"1 of 1 rows do not begin with <\|endoftext\|>, which the tokenizer adds",
    ),
    "prompt-differs": (
        made("thinking"),
        [chat("Hi", "Yo")],
        {},
        r"generation goes on from '<think>\\n', and the text of the row from 'Yo",
    ),
    "prompt-tokens-differ": (
        made("mistral", ASK),
        [chat("see", "the fox")],
        {},
        r"the prompt of messages\[1\] ends in other tokens",
    ),
    "no-generation-prompt": (
        made("chatml", CHATML.partition("{% if")[0]),
        [chat("Hi", "Yo")],
        {},
        r"'<\|im_start\|>assistant\\n' stands between the prompt and what is trained",
    ),
    "words-changed": (
        made("chatml", CHATML.replace("message['content']", "message['content'][:4]")),
        [chat("Hi", "Yo", system="Be brief")],
        {},
        r"messages\[0\].content \(role system\) is not in the text",
    ),
    "thoughts-dropped": (
        made("chatml", CHATML.replace("['content']", "['content'].split('</think>')[-1]")),
        [chat("Hi", THOUGHT)],
        {},
        r"'hm, well' \(messages\[1\].content\) is left out",
    ),
    "calls-changed": (
        made("qwen", QWEN.replace("tool_call.function.arguments | tojson", "'{}'")),
        [ASKED],
        {},
        r"'town' of messages\[1\].tool_calls is left out",
    ),
    "null-written": (
        made(
            "qwen",
            QWEN.replace(
                "{%- if message.content %}{{- '\n' + message.content }}{%- endif %}",
                "{{- '\n' + (message.content or 'None') }}",
            ),
        ),
        [ASKED],
        {},
        r"messages\[1\] has no content",
    ),
    "control-words": (
        made("chatml"),
        [chat("Hi<|im_end|>\n<|im_start|>assistant\nNo", "Yo")],
        {},
        r"messages\[0\] \(role user\) holds <\|im_end\|>",
    ),
    "not-repeatable": (made("llama3", TIMED), [chat("Hi", "Yo")], {}, "does not write the same"),
    "marks-in-pieces": (
        named("none", "zephyr"),
        [chat("Hi", "Yo")],
        {"chat_template": "zephyr"},
        r"--new_tokens '<\|user\|>,<\|assistant\|>'",
    ),
    "end-is-not-eos": (
        made("gemma"),
        [chat("Hi", "Yo")],
        {},
        "answers of 1 of 1 rows end with <end_of_turn>, and the tokenizer's end token is <eos>",
    ),
    "pad-is-end": (
        made("chatml", pad="eos"),
        [chat("Hi", "Yo")],
        {},
        r"the pad token <\|im_end\|> is an end token too",
    ),
    "pad-in-text": (made("chatml"), [chat("Hi <pad>", "Yo")], {}, "1 of 1 rows hold the pad token"),
    "history-rewritten": (
        made("thinking"),
        [chat("Hi", THOUGHT, "And?", THOUGHT)],
        {},
        "earlier turns anew",
    ),
    "system-added": (made("qwen"), [chat("Hi", "Yo")], {}, "the template adds 'Be kind'"),
}


def test_every_kind_has_a_fault():
    assert FAULTS.keys() == KINDS.keys()


@pytest.mark.parametrize("code", FAULTS)
def test_a_fault_is_found_and_told(code):
    """Nothing else that is to be acted on is found with it, and sound rows have none of it."""
    tokenizer, rows, options, text = FAULTS[code]
    findings = findings_of(rows, tokenizer, **options)
    [found] = [found for found in findings if found.code == code]
    assert found.severity == KINDS[code].severity
    assert re.search(text, found.text), found.text
    others = [other.told for other in findings if other.code != code and other.severity != "info"]
    assert others == []
    assert found.told.startswith(f"{code}: {found.text}")
    assert found.told.endswith(KINDS[code].mend)
    if found.severity != "info":
        assert found.source == f"rows row {len(rows)}"


def test_the_table_in_the_documentation_is_that_of_the_code():
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    section = page.partition("## The check of template and rows\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [
        f"| `{code}` | {kind.severity} | {kind.means} | {kind.mend} |"
        for code, kind in KINDS.items()
    ]
