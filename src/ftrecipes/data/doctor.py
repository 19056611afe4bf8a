"""The check of template and rows: what a person would have to look for before each run.

The ids and labels of all rows are looked at, and some rows are read and rendered once more. It
judges what the rows have become, however they came to be: tokenised now, taken from the cache, or
tokenised by somebody else.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from ftrecipes.config.errors import DataError
from ftrecipes.config.sections import DataConfig
from ftrecipes.data.dialog_checks import check_dialog
from ftrecipes.data.encode import opening_ids
from ftrecipes.data.findings import ORDER, Finding, finding
from ftrecipes.data.kinds import ChatRow, TokenRow
from ftrecipes.data.rows import RawRows, TokenRows
from ftrecipes.data.sampled import SampledRow, dialogs_of, sample_rows, text_rows
from ftrecipes.data.split_checks import check_split
from ftrecipes.data.split_ids import Split
from ftrecipes.runtime import log

# A finding that says more than another about the same thing.
SAYS_MORE = {
    "end-in-pieces": "no-end-token",
    "user-words-trained": "marks-trained",
    "control-words": "marks-trained",
}


def examine(
    raw: RawRows,
    rows: TokenRows,
    tokenizer: PreTrainedTokenizerBase,
    *,
    data: DataConfig,
    context_length: int,
) -> list[Finding]:
    """What there is to say of these rows, the heaviest first; each code at most once.

    `rows` are what `raw` became with these settings. Healthy rows have no finding heavier than
    `info`. Costs a few passes over ids and labels, and the rendering of some rows.
    """
    sampled = sample_rows(raw, rows, tokenizer, data)
    kind = _kind(sampled)
    split = Split(rows, tokenizer, data, context_length, kind)
    dialogs = list(dialogs_of(sampled, tokenizer))
    of_dialogs = [found for dialog in dialogs for found in check_dialog(dialog, tokenizer, data)]
    found = [
        *check_split(split),
        *_once(of_dialogs, total=len(dialogs)),
        *_text_borders(raw, sampled, tokenizer),
    ]
    codes = {one.code for one in found}
    hidden = {less for more, less in SAYS_MORE.items() if more in codes}
    kept = [one for one in found if one.code not in hidden]
    return sorted(kept, key=lambda one: ORDER.index(one.severity))


def verdict(findings: Sequence[Finding], *, strict: bool) -> DataError | None:
    """What ends a run: errors, and with `strict` warnings too."""
    ending = ("error", "warning") if strict else ("error",)
    told = [one.told for one in findings if one.severity in ending]
    if not told:
        return None
    why = " (with --data.strict, warnings too)" if strict else ""
    return DataError(f"The check of template and rows ends the run{why}.\n\n" + "\n\n".join(told))


def tell(findings: Sequence[Finding]) -> None:
    """Warnings one by one, and all that is harmless in one line of the log."""
    harmless = []
    for one in findings:
        if one.severity == "info":
            harmless.append(f"{one.text} ({one.code})")
        else:
            log.warning(one.told)
    if harmless:
        log.info(f"template and rows, nothing to mend: {'; '.join(harmless)}")


def _kind(sampled: list[SampledRow]) -> str:
    row = sampled[0].row
    if isinstance(row, ChatRow):
        return "chat"
    return "tokens" if isinstance(row, TokenRow) else "text"


def _once(found: Iterable[Finding], *, total: int) -> list[Finding]:
    """The first finding of each code, with the number of dialogs that have it."""
    found = list(found)
    counts = Counter((one.code, one.source) for one in found)
    rows = Counter(code for code, _ in counts)
    first = {one.code: one for one in reversed(found)}
    return [
        replace(one, text=f"{one.text} ({rows[one.code]} of {total} dialogs looked at)")
        for one in first.values()
    ]


def _text_borders(
    raw: RawRows, sampled: list[SampledRow], tokenizer: PreTrainedTokenizerBase
) -> list[Finding]:
    """Prompts of plain text that end in other tokens when they stand alone, as in generation."""
    opening = opening_ids(tokenizer).tolist()
    for one, row in text_rows(sampled):
        prompt = [*opening, *tokenizer(row.prompt, add_special_tokens=False)["input_ids"]]
        ids = one.input_ids.tolist()
        ends_blank = row.prompt[-1:].isspace() and len(ids) > len(prompt)
        if ends_blank and ids[: len(prompt)] != prompt:
            text = f"the prompt ends with {row.prompt[-1]!r}, and the row goes over it in one token"
            # The prompts of named sets are those of llama-recipes, and nobody's to mend.
            severity = "info" if raw.reader else None
            return [finding("prompt-tokens-differ", text, source=one.source, severity=severity)]
    return []
