"""Tools and calls that can not be used, and templates that leave something out."""

import pytest

from ftrecipes.config.errors import DataError
from tests.data.dialogs import rows_of, tokenize, trained_text
from tests.data.tool_dialogs import ASKED, TOOL, call, calls, dialog, result, says
from tests.tiny_tokenizers import build_tokenizer


def nested(depth: int) -> dict:
    made = {}
    for _ in range(depth):
        made = {"a": made}
    return made


@pytest.mark.parametrize(
    ("family", "row", "fault"),
    [
        ("llama3", ASKED | {"messages": [says("user", "Hi"), says("assistant", "Ho")]}, "tools"),
        ("chatml", ASKED, "leaves the tools out"),
        ("deepseek", ASKED, "leaves the tools out"),
        ("llama3_tools", dialog(says("user", "Hi"), calls(call(), call())), "one tool call"),
        ("mistral_tools", dialog(says("user", "a"), calls({"function": call()["function"]})), "id"),
        (
            "llama3_tools",
            dialog(says("user", "Hi"), calls(call(), content="I look.")),
            r"leaves messages\[1\].content out",
        ),
        (
            "qwen",
            {"messages": [says("developer", "Obey"), says("user", "Hi"), says("assistant", "Ho")]},
            r"leaves messages\[0\].content out \(role developer\)",
        ),
    ],
)
def test_what_a_template_leaves_out_is_a_fault_of_the_row(family, row, fault):
    with pytest.raises(DataError, match=f"test rows row 1: the chat template .*{fault}"):
        tokenize([row], build_tokenizer(family))


@pytest.mark.parametrize(("role", "words"), [("tool", "42"), ("developer", "user")])
def test_words_that_another_message_or_the_template_has_too_are_missed(role, words):
    tokenizer = build_tokenizer("chatml")
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "messages %}", f"messages if message.role != '{role}' %}}"
    )
    rows = [[says("user", "6*7?"), says("assistant", "It is 42.\n4 is even.")]]
    rows.append([says(role, words), *rows[0]])
    with pytest.raises(DataError, match=rf"1 of 2 .*\n.*row 2.*messages\[0\].content out.*{role}"):
        tokenize([{"messages": messages} for messages in rows], tokenizer)


def test_a_template_that_leaves_calls_out():
    tokenizer = build_tokenizer("chatml")
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "message['content']", "(message['content'] or '')"
    )
    with pytest.raises(DataError, match=r"leaves messages\[1\].tool_calls out"):
        tokenize([{"messages": ASKED["messages"]}], tokenizer)


def test_calls_in_the_old_and_the_new_shape_are_not_both_read():
    message = calls(call(), function_call={"name": "sun", "arguments": "{}"})
    with pytest.raises(DataError, match=r"messages\[1\]' has function_call and tool_calls"):
        tokenize([dialog(says("user", "Hi"), message)], build_tokenizer("qwen"))


@pytest.mark.parametrize(
    ("tools", "made", "fault"),
    [
        ("no JSON", call(), "key 'tools' is text that is no JSON"),
        ({"rain": 1}, call(), "key 'tools' is an object; expected a list"),
        (["rain"], call(), r"key 'tools\[0\]' is text"),
        ([{"description": "x"}], call(), r"key 'tools\[0\].name' is missing"),
        ([{"function": {}}], call(), r"key 'tools\[0\].function.name' is missing"),
        ([TOOL], "rain", r"key 'messages\[1\].tool_calls\[0\]' is text"),
        ([TOOL], {"function": {}}, r"messages\[1\].tool_calls\[0\].function.name' is missing"),
        ([TOOL], call("{cut"), r"tool_calls\[0\].function.arguments' is text that is no JSON"),
        ([TOOL], call("7"), r"function.arguments' is JSON text of a number; expected an object"),
        ([TOOL], call({"a": "\ud83d"}), "the row holds half a character"),
        (
            [TOOL],
            call('{"a": 1, "a": 2}'),
            "arguments' is JSON text in which key 'a' is given twice",
        ),
        ([TOOL], call('{"a": NaN}'), "function.arguments' can not be written as JSON"),
        ([TOOL], call('{"a": 1e400}'), "function.arguments' can not be written as JSON"),
        ([TOOL | {"x": float("nan")}], call(), "key 'tools' can not be written as JSON"),
        ([TOOL | {"x": nested(900)}], call(), "its objects and lists are nested too deep"),
        ([TOOL], call(nested(900)), "its objects and lists are nested too deep"),
        ([TOOL], call([1]), r"function.arguments' is a list; expected an object"),
    ],
)
def test_faulty_tools_and_calls_are_named(tools, made, fault):
    row = {"messages": [says("user", "Hi"), calls(made)], "tools": tools}
    with pytest.raises(DataError, match=f"test rows row 1: .*{fault}"):
        tokenize([row], build_tokenizer("qwen"))


def named_results(*, of_calls="m.tool_calls", behind="''") -> str:
    """As Harmony and Gemma 4: a result bears the function's name; early thoughts are left out."""
    template = (
        "{%- set ns = namespace(name='') %}{%- for m in messages %}"
        "{%- if m.role == 'tool' %}{{- '<|im_start|>' + ns.name + '\n' + m.content }}"
        "{{- BEHIND }}"
        "{%- else %}{{- '<|im_start|>' + m.role + '\n' }}"
        "{%- if loop.last and m.thinking %}{{- '<think>' + m.thinking + '</think>' }}"
        "{%- endif %}"
        "{%- if not m.tool_calls or BEHIND == '' %}{{- m.content }}{%- endif %}"
        "{%- for call in CALLS %}{%- set ns.name = call.function.name %}"
        "{{- '<tool_call>' + ns.name + (call.function.arguments | tojson) + '</tool_call>' }}"
        "{%- endfor %}{%- endif %}{{- '<|im_end|>\n' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
    )
    return template.replace("CALLS", of_calls).replace("BEHIND", behind)


def test_the_name_that_a_result_bears_is_not_taken_for_a_call():
    tokenizer = build_tokenizer("qwen")
    tokenizer.chat_template = named_results()
    message = calls(call({"a": 1}), call({"a": 2}, name="sun"), thinking="hm", content="I look.")
    messages = [says("user", "Hi"), message, result(), result("no", "2"), says("assistant", "So.")]
    [(_, labels)] = rows_of(tokenize([{"messages": messages}], tokenizer))
    made = '<tool_call>rain{"a": 1}</tool_call><tool_call>sun{"a": 2}</tool_call>'
    assert trained_text(tokenizer, labels) == f"I look.{made}<|im_end|>So.<|im_end|>"


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        (
            named_results(of_calls="(m.tool_calls or [])[:1]"),
            r"leaves messages\[1\].tool_calls out",
        ),
        (
            named_results(behind="messages[1].content"),
            r"writes messages\[1\].content apart from its tool_calls",
        ),
    ],
)
def test_calls_and_words_that_are_not_all_in_one_place(template, fault):
    tokenizer = build_tokenizer("qwen")
    tokenizer.chat_template = template
    message = calls(call(), call(name="sun"), thinking="hm", content="I look.")
    messages = [says("user", "Hi"), message, result(), says("assistant", "So.")]
    with pytest.raises(DataError, match=fault):
        tokenize([{"messages": messages}], tokenizer)
