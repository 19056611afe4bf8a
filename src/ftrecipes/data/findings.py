"""What the check of template and rows may find: each kind with its weight and what mends it."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

Severity = Literal["error", "warning", "info"]
ORDER = ("error", "warning", "info")
"""The worst first."""


@dataclass(frozen=True)
class Kind:
    """What findings of one code have in common; docs/data.md has the same table."""

    severity: Severity
    means: str
    mend: str


CHOOSE = "another template: --data.chat_template NAME or FILE.jinja"
KINDS = {
    "user-words-trained": Kind(
        "error",
        "the template puts words of the user, the system or a tool where an answer is trained",
        f"{CHOOSE}; or --data.train_on all, if that is meant",
    ),
    "marks-trained": Kind(
        "warning",
        "the mark that opens a user's turn is trained: whole dialogs as text, or such marks in an "
        "answer",
        "give dialogs as messages (--data.format chat), or correct labels and answers; "
        "--data.train_on all, if that is meant",
    ),
    "no-end-token": Kind(
        "warning",
        "no end token is trained behind the last answer: the model does not learn where to stop",
        f"a template that ends answers with {{{{ eos_token }}}} ({CHOOSE.partition(': ')[2]}), or "
        "labels for the end token",
    ),
    "end-in-pieces": Kind(
        "warning",
        "what ends an answer is several tokens, and generation stops at single ones only",
        "--new_tokens with the marks of the template, or a template that ends answers with the "
        "end token (zephyr, mistral, alpaca)",
    ),
    "end-not-trained": Kind(
        "warning",
        "an end token stands right behind an answer and has no label, as where labels were masked "
        "by the id of a pad token",
        "give end tokens their label in the rows, or let dialogs be tokenised here",
    ),
    "answer-cut": Kind(
        "warning",
        "the context ends within an answer: the model learns to stop nowhere in it",
        "raise --context_length, or --data.truncation drop, split or error",
    ),
    "prompt-too-long": Kind(
        "warning",
        "the context ends before the first answer does begin: nothing of the row is trained",
        "raise --context_length, or --data.truncation left, drop or error",
    ),
    "bos-repeated": Kind(
        "warning",
        "BOS stands somewhere else than at the beginning of a row, or there twice",
        f"take it out of the rows or the template ({CHOOSE.partition(': ')[2]})",
    ),
    "no-bos": Kind(
        "warning",
        "the tokenizer puts BOS before a text, and the template that was asked for does not",
        "begin the template with {{ bos_token }}",
    ),
    "prompt-differs": Kind(
        "warning",
        "the text that generation is given for a dialog is not how its training text begins",
        f"answers that begin as the template opens them (<think>), or {CHOOSE}",
    ),
    "prompt-tokens-differ": Kind(
        "warning",
        "the texts are the same, and the last tokens of the prompt are not: a blank or a word goes "
        "over the border",
        f"begin the answer with the blank that ends the prompt; {CHOOSE}",
    ),
    "no-generation-prompt": Kind(
        "warning",
        "the template knows no add_generation_prompt, and a header that is not trained stands "
        "between prompt and answer",
        f"add it to the template; {CHOOSE}",
    ),
    "words-changed": Kind(
        "warning",
        "the template does not write the words of a message as they are",
        CHOOSE,
    ),
    "thoughts-dropped": Kind(
        "warning",
        "the template leaves out what the last answer thinks",
        f"{CHOOSE}; thoughts may be the text of the answer",
    ),
    "calls-changed": Kind(
        "warning",
        "the template leaves the name or an argument of a call out",
        CHOOSE,
    ),
    "null-written": Kind(
        "warning",
        "the template writes the word None where a message has no content",
        CHOOSE,
    ),
    "control-words": Kind(
        "warning",
        "words of a message hold a mark of the template, which becomes that token",
        "take it out of the rows",
    ),
    "not-repeatable": Kind(
        "warning",
        "the template writes another text when it is asked again, as one with the time does",
        CHOOSE,
    ),
    "marks-in-pieces": Kind(
        "info",
        "marks of the template that was asked for are several tokens each",
        "--new_tokens makes them one each; it is no fault to leave them",
    ),
    "end-is-not-eos": Kind(
        "info",
        "answers end with another token than the tokenizer's end token, so generation must know it",
        "check eos_token_id in the model's generation_config.json",
    ),
    "pad-is-end": Kind(
        "info",
        "the pad token is what ends answers too, which is no harm: labels follow positions",
        "",
    ),
    "pad-in-text": Kind(
        "info",
        "rows hold the pad token, which is no harm: labels follow positions",
        "",
    ),
    "history-rewritten": Kind(
        "info",
        "the template writes an earlier answer in another way than the last one; it is trained as "
        "it is written",
        "--data.train_on last_assistant leaves earlier answers out",
    ),
    "system-added": Kind(
        "info",
        "the template adds a system text of its own to a dialog that has none",
        "give rows a system message",
    ),
}


class ShownToken(NamedTuple):
    """One of the tokens around a finding."""

    text: str
    is_trained: bool


GOES_ON = ShownToken("...", False)
"""Stands where the row goes on beyond the tokens that are shown."""


@dataclass(frozen=True)
class Finding:
    """What was found, in which row, among which tokens, and what mends it."""

    severity: Severity
    code: str
    """A key of KINDS."""
    text: str
    mend: str
    source: str = ""
    """The row that shows it; empty where it is about none."""
    tokens: tuple[ShownToken, ...] = ()

    @property
    def shown(self) -> str:
        """The tokens in a line; trained ones in brackets."""
        shown = "".join(f"[{text}]" if trained else text for text, trained in self.tokens)
        return shown.replace("\n", "\\n").replace("][", "|")

    @property
    def told(self) -> str:
        """All of it, in lines."""
        parts = (("row", self.source), ("tokens", self.shown), ("do", self.mend))
        return f"{self.code}: {self.text}" + "".join(
            f"\n  {name}: {part}" for name, part in parts if part
        )


def finding(
    code: str,
    text: str,
    *,
    source: str = "",
    tokens: tuple[ShownToken, ...] = (),
    severity: Severity | None = None,
) -> Finding:
    """A finding of the kind `code`."""
    kind = KINDS[code]
    return Finding(severity or kind.severity, code, text, kind.mend, source, tokens)
