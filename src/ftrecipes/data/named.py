"""The named data sets of llama-recipes, in its prompts, word for word.

Prompts: https://github.com/meta-llama/llama-cookbook, src/llama_cookbook/datasets. As there, they
are plain text whatever template the tokenizer has, and the answer and its end token are trained.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from ftrecipes.data.fields import words
from ftrecipes.data.kinds import TextRow
from ftrecipes.data.readers import read_instruction
from ftrecipes.data.rows import RawRows
from ftrecipes.runtime import log

SAMSUM = "samsum_dataset"
SAMSUM_ID = "knkarthick/samsum"
"""Who serves SAMSum since the sets `samsum` and `Samsung/samsum` left the hub in May 2025:
https://github.com/meta-llama/llama-cookbook/pull/950"""


def name_rows(name: str, raw: RawRows) -> RawRows:
    """`raw` as rows of the named data set, which has a prompt of its own."""
    raw = _with_dialogs(raw) if name == SAMSUM else raw
    fingerprint = raw.fingerprint and f"{name} {raw.fingerprint}"
    return replace(raw, reader=READERS[name], fingerprint=fingerprint)


def read_samsum(row: Mapping) -> TextRow:
    """A dialog to summarize, and its summary."""
    dialog, summary = words(row, "dialogue"), words(row, "summary")
    return TextRow(f"Summarize this dialog:\n{dialog}\n---\nSummary:\n", summary)


def read_grammar(row: Mapping) -> TextRow:
    """A sentence to correct, and the correct one."""
    sentence, corrected = words(row, "input"), words(row, "target")
    return TextRow(f"Correct this to standard English: {sentence}\n---\nCorrected: ", corrected)


READERS: Mapping[str, Callable[[Mapping], TextRow]] = MappingProxyType(
    {
        SAMSUM: read_samsum,
        "alpaca_dataset": read_instruction,
        "grammar_dataset": read_grammar,
    }
)


def _with_dialogs(raw: RawRows) -> RawRows:
    """Without the rows that have no dialog: nobody who names the set could correct them."""
    if "dialogue" not in raw.columns:
        return raw
    kept = [index for index, row in enumerate(raw.rows) if row.get("dialogue")]
    if len(kept) == len(raw):
        return raw
    log.info(f"{raw.name}: {len(raw) - len(kept)} of {len(raw)} rows have no dialog; left out")
    return raw.pick(kept, fingerprint=raw.fingerprint)
