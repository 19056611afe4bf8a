"""Dialogs as rows, and by hand what each family's template makes of them."""

from ftrecipes.config.sections import DataConfig
from ftrecipes.data.facts import IGNORED
from ftrecipes.data.rows import collect_rows
from ftrecipes.data.tokenize import tokenize_rows
from tests.tiny_tokenizers import FAMILIES


def chat(*turns: str, system: str | None = None) -> dict:
    """user, assistant, user, ... as a row."""
    first = [] if system is None else [{"role": "system", "content": system}]
    roles = ("user", "assistant")
    return {
        "messages": first
        + [{"role": roles[i % 2], "content": turn} for i, turn in enumerate(turns)]
    }


def tokenize(rows, tokenizer, *, context_length=4096, **data):
    """The rows of a split named "test rows"; `data` are fields of DataConfig."""
    raw = collect_rows(rows, name="test rows")
    config = DataConfig(**data)
    return tokenize_rows(raw, tokenizer, data=config, context_length=context_length)


def rows_of(token_rows) -> list[tuple[list[int], list[int]]]:
    """Ids and labels of each row."""
    bounds = list(zip(token_rows.offsets, token_rows.offsets[1:], strict=False))
    return [
        (token_rows.input_ids[a:b].tolist(), token_rows.labels[a:b].tolist()) for a, b in bounds
    ]


def trained_text(tokenizer, labels: list[int]) -> str:
    return tokenizer.decode([label for label in labels if label != IGNORED])


def pieces_of(family: str, messages: list[dict]) -> list[tuple[str, bool]]:
    """What the family's template writes: text, and whether the model must produce it."""
    pieces = [(FAMILIES[family].bos, False)] if family in ("llama3", "mistral", "gemma") else []
    for index, message in enumerate(messages):
        is_last = index == len(messages) - 1
        answer = message["role"] == "assistant"
        header, body, after = TURNS[family](message["role"], message["content"], is_last)
        pieces += [(header, False), (body, answer), (after, False)]
    return pieces


def _chatml(role, text, is_last):
    return f"<|im_start|>{role}\n", f"{text}<|im_end|>", "\n"


def _llama3(role, text, is_last):
    header = f"<|start_header_id|>{role}<|end_header_id|>\n\n"
    return header, f"{text.strip()}<|eot_id|>", ""


def _mistral(role, text, is_last):
    return ("", f" {text}</s>", "") if role == "assistant" else (f"[INST] {text} [/INST]", "", "")


def _gemma(role, text, is_last):
    header = f"<start_of_turn>{'model' if role == 'assistant' else role}\n"
    return header, f"{text.strip()}<end_of_turn>", "\n"


def _thinking(role, text, is_last):
    header = f"<|im_start|>{role}\n"
    if role == "assistant" and not is_last:
        text = text.split("</think>")[-1].lstrip("\n") if "</think>" in text else text
    opening = "<think>\n"
    if role == "assistant" and text.startswith(opening):
        return header + opening, f"{text.removeprefix(opening)}<|im_end|>", "\n"
    return header, f"{text}<|im_end|>", "\n"


def _eos_last(role, text, is_last):
    header = f"<|{role}|>\n"
    if not is_last:
        return header, text, "\n"
    return (header, f"{text}</s>", "") if role == "assistant" else (header, text, "</s>")


def _no_end(role, text, is_last):
    return f"{role}: ", text, "\n"


TURNS = {
    "chatml": _chatml,
    "generation": _chatml,
    "llama3": _llama3,
    "mistral": _mistral,
    "gemma": _gemma,
    "thinking": _thinking,
    "eos_last": _eos_last,
    "no_end": _no_end,
}
