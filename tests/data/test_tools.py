"""Functions and their calls in chats: which templates write them, and what of them is trained."""

import json

import pytest

from tests.data.dialogs import rows_of, tokenize, trained_text
from tests.data.tool_dialogs import ARGUMENTS, ASKED, CALL, TOOL, call, calls, dialog, result, says
from tests.tiny_tokenizers import build_tokenizer

TWICE = dialog(
    *ASKED["messages"],
    says("user", "And now?"),
    calls(call({}, number="2")),
    result("no", "2"),
    says("assistant", "No."),
)


def as_objects(messages: list[dict]) -> list[dict]:
    """The form that transformers' documentation asks for."""
    made = []
    for message in messages:
        found = [
            {**one, "function": {**one["function"], "arguments": _object(one)}}
            for one in message.get("tool_calls", ())
        ]
        made.append({**message, "tool_calls": found} if found else message)
    return made


def _object(one: dict) -> dict:
    arguments = one["function"]["arguments"]
    return json.loads(arguments) if isinstance(arguments, str) else arguments


EMPTY_CALL = '{"name": "rain", "arguments": {}}'
TRAINED = {
    "qwen": [
        f"<tool_call>\n{CALL}\n</tool_call><|im_end|>It does.<|im_end|>",
        f"<tool_call>\n{EMPTY_CALL}\n</tool_call><|im_end|>No.<|im_end|>",
    ],
    "llama3_tools": [
        CALL.replace("arguments", "parameters") + "<|eot_id|>It does.<|eot_id|>",
        EMPTY_CALL.replace("arguments", "parameters") + "<|eot_id|>No.<|eot_id|>",
    ],
    "mistral_tools": [
        f'[TOOL_CALLS] [{CALL[:-1]}, "id": "call1"}}]</s> It does.</s>',
        f'[TOOL_CALLS] [{EMPTY_CALL[:-1]}, "id": "call2"}}]</s> No.</s>',
    ],
    "qwen3": [
        f"<tool_call>\n{CALL}\n</tool_call><|im_end|>%sIt does.<|im_end|>",
        f"<tool_call>\n{EMPTY_CALL}\n</tool_call><|im_end|><think>\n\n</think>\n\nNo.<|im_end|>",
    ],
}
FAMILIES = [*TRAINED, "deepseek"]


def trained_of(family: str, *, turns: int) -> str:
    """By hand: what the model must produce of ASKED or TWICE."""
    if family == "deepseek":
        arguments = [json.dumps(ARGUMENTS, ensure_ascii=False), "{}"]
        answers = ["It does.", "No."]
        return "".join(
            f"<|calls|><|call|>rain\n```json\n{given}\n```<|/calls|><|end|>{answer}<|end|>"
            for given, answer in list(zip(arguments, answers, strict=True))[:turns]
        )
    text = "".join(TRAINED[family][:turns])
    if family != "qwen3":
        return text
    return text % ("<think>\n\n</think>\n\n" if turns == 1 else "")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("row", "turns"), [(ASKED, 1), (TWICE, 2)])
def test_calls_are_trained_and_results_are_not(family, row, turns):
    """Arguments as JSON text, contents of null, results that stand in a user's turn."""
    tokenizer = build_tokenizer(family)
    has_tools = family != "deepseek"
    token_rows = tokenize([row if has_tools else {"messages": row["messages"]}], tokenizer)
    [(ids, labels)] = rows_of(token_rows)
    assert trained_text(tokenizer, labels) == trained_of(family, turns=turns)
    assert token_rows.report == []
    if has_tools:
        # DeepSeek's joins arguments as text, and does not know a content of null.
        expected = tokenizer.apply_chat_template(as_objects(row["messages"]), tools=[TOOL])
        assert ids == expected["input_ids"]


def test_json_text_and_objects_are_the_same_row():
    """As cells of a CSV file, and as the structs of a Parquet file, which fills keys with null."""
    tokenizer = build_tokenizer("qwen")
    text = {key: json.dumps(value) for key, value in ASKED.items()}
    struct = json.loads(json.dumps(ASKED))
    struct["messages"][1]["tool_calls"][0]["function"]["arguments"] = ARGUMENTS | {"wind": None}
    struct["messages"] = [
        {"name": None, "tool_calls": None, "tool_call_id": None} | message
        for message in struct["messages"]
    ]
    struct["tools"][0]["function"]["parameters"]["properties"]["wind"] = None
    bare = ASKED | {"tools": [TOOL["function"]]}
    bare["messages"] = [*ASKED["messages"]]
    bare["messages"][1] = calls(call()["function"])
    first, *others = rows_of(tokenize([ASKED, text, struct, bare], tokenizer))
    assert len(others) == 3
    assert others == [first] * 3


def test_a_null_in_json_text_stays():
    tokenizer = build_tokenizer("qwen")
    row = dialog(says("user", "Rain?"), calls(call('{"town": null}')))
    [(_, labels)] = rows_of(tokenize([row], tokenizer))
    assert '{"town": null}' in trained_text(tokenizer, labels)


def test_words_beside_a_call_and_two_calls_in_a_turn():
    tokenizer = build_tokenizer("qwen")
    both = calls(call({}), call({}, number="2", name="sun"), content="I look.")
    row = dialog(says("user", "Rain?"), both, result(), result(number="2"))
    [(ids, labels)] = rows_of(tokenize([row], tokenizer))
    second = EMPTY_CALL.replace("rain", "sun")
    assert trained_text(tokenizer, labels) == (
        f"I look.\n<tool_call>\n{EMPTY_CALL}\n</tool_call>\n"
        f"<tool_call>\n{second}\n</tool_call><|im_end|>"
    )
    assert tokenizer.decode(ids).count("<tool_response>") == 2


def test_openais_older_spelling():
    tokenizer = build_tokenizer("qwen")
    older = dialog(
        says("user", "Does it rain?"),
        says("assistant", None, function_call=call()["function"]),
        says("function", "yes", name="rain"),
        says("assistant", "It does."),
    )
    first, second = rows_of(tokenize([older, ASKED], tokenizer))
    assert first == second


def test_thoughts_of_an_earlier_turn_with_calls():
    """Qwen 3: thoughts stand behind the last question only; the earlier call is trained alone."""
    tokenizer = build_tokenizer("qwen3")
    row = dialog(
        says("user", "Rain?"),
        calls(call({}), reasoning_content="hm"),
        result(),
        says("assistant", "<think>\nah\n</think>\n\nYes."),
        says("user", "Sure?"),
        calls(call({}, number="2"), reasoning_content="again"),
        result(),
        says("assistant", "Yes!", reasoning_content="so"),
    )
    made = f"<tool_call>\n{EMPTY_CALL}\n</tool_call><|im_end|>"
    [(_, labels)] = rows_of(tokenize([row], tokenizer))
    assert trained_text(tokenizer, labels) == (
        f"{made}Yes.<|im_end|>"
        f"<think>\nagain\n</think>\n\n{made}<think>\nso\n</think>\n\nYes!<|im_end|>"
    )


def test_a_template_that_writes_python_for_json_gets_json():
    tokenizer = build_tokenizer("qwen")
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "tool_call.function.arguments | tojson", "tool_call.function.arguments"
    )
    [(_, labels)] = rows_of(tokenize([ASKED], tokenizer))
    assert trained_text(tokenizer, labels) == trained_of("qwen", turns=1)


def test_a_result_that_shows_the_arguments_as_python_is_only_words():
    tokenizer = build_tokenizer("qwen")
    shown = {"messages": [*ASKED["messages"][:2], result(str(ARGUMENTS)), *ASKED["messages"][3:]]}
    [(_, labels)] = rows_of(tokenize([shown], tokenizer))
    assert trained_text(tokenizer, labels) == trained_of("qwen", turns=1)


def test_calls_where_there_is_no_generation_prompt():
    """The header is the template's; words beside a call and the call are the model's."""
    tokenizer = build_tokenizer("qwen")
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
        "{% for call in m.tool_calls or [] %}[CALL]{{ call.function | tojson }}{% endfor %}"
        "<|im_end|>\n{% endfor %}"
    )
    made = f"[CALL]{EMPTY_CALL}<|im_end|>"
    rows = [
        {"messages": [says("user", "Rain?"), calls(call({}), content=words), result()]}
        for words in (None, "I look.")
    ]
    bare, beside = rows_of(tokenize(rows, tokenizer))
    assert trained_text(tokenizer, bare[1]) == made
    assert trained_text(tokenizer, beside[1]) == f"I look.{made}"
