"""Whose words each token of a row is: told by rendering the row again, for a person to look at.

Nothing that is trained depends on this. The words of a message are found as an answer is (see
chat.py): they are exchanged for a character that is nowhere in the dialog, and what stays the same
before and behind it bounds them.
"""

from collections.abc import Iterator, Mapping, Sequence

from transformers import PreTrainedTokenizerBase

from ftrecipes.data.chat import Rendered
from ftrecipes.data.encode import Encoder, opening_ids
from ftrecipes.data.kinds import ChatRow, Row, TextRow, TokenRow
from ftrecipes.data.masks import Span
from ftrecipes.data.spans import common_prefix
from ftrecipes.data.template import Messages, Template, unused_character
from ftrecipes.data.tools import with_objects, with_texts

TEMPLATE = "template"
"""What nobody says: headers, ends of turns, BOS."""
GIVEN = "given"
"""Of finished tokens nobody knows who says them."""


def speakers(
    row: Row, tokenizer: PreTrainedTokenizerBase, encoder: Encoder
) -> tuple[TokenRow, list[str]]:
    """The row as ids and labels before any cut, and for each position who says it.

    That is a role of the dialog, `prompt` or `answer` of plain text, TEMPLATE, or GIVEN. Raises
    RowFault for a row that can not be rendered.
    """
    rendered = encoder.render(row)
    [tokens] = encoder.encode([rendered])
    if not isinstance(rendered, Rendered):
        return tokens, [GIVEN] * len(tokens.input_ids)
    owners = [TEMPLATE] * len(rendered.text)
    for (start, end), who in _said(row, rendered.text, tokenizer):
        owners[start:end] = [who] * (end - start)
    encoded = tokenizer(
        rendered.text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
    )
    found = [_owner(rendered.text, owners, span) for span in encoded["offset_mapping"]]
    # Plain text may stand between BOS and EOS, which are nobody's.
    around = len(tokens.input_ids) - len(found)
    before = min(around, len(opening_ids(tokenizer))) if rendered.is_plain else 0
    if before and tokens.input_ids[:around].tolist() == encoded["input_ids"][:around]:
        before = 0
    return tokens, [TEMPLATE] * before + found + [TEMPLATE] * (around - before)


def _owner(text: str, owners: Sequence[str], span: Span) -> str:
    """Who says a token: as with labels, white space alone does not count."""
    said = [owners[at] for at in range(*span) if not text[at].isspace()] or owners[slice(*span)]
    return next((who for who in said if who != TEMPLATE), TEMPLATE)


def _said(row: Row, text: str, tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[Span, str]]:
    """Where in `text` the words of each message are."""
    if isinstance(row, TextRow):
        yield (0, len(row.prompt)), "prompt"
        yield (len(row.prompt), len(text)), "answer"
    if not isinstance(row, ChatRow):
        return
    template = Template(tokenizer, row.tools)
    messages = _as_written(row.messages, text, template)
    mark = unused_character(text)
    for index, message in enumerate(messages):
        if not message.get("content"):
            continue
        exchanged = [*messages[:index], {**message, "content": mark}, *messages[index + 1 :]]
        before, found, behind = (template.try_write(exchanged) or "").partition(mark)
        start = len(common_prefix(text, before))
        if found and mark not in behind and text[start:].endswith(behind):
            yield (start, len(text) - len(behind)), message["role"]


def _as_written(messages: Messages, text: str, template: Template) -> list[Mapping]:
    """The messages in the form of which the template made `text`; none where that is not found."""
    plain = [{key: item for key, item in message.items() if key != "train"} for message in messages]
    for make in (list, with_objects, with_texts):
        form = make(plain)
        if template.try_write(form) == text:
            return form
    return []
