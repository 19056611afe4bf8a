"""Rows as a run reads them, and what the doctor says of them."""

from ftrecipes.config.sections import DataConfig
from ftrecipes.data.doctor import examine
from ftrecipes.data.findings import Finding
from ftrecipes.data.rows import collect_rows
from ftrecipes.data.tokenize import tokenize_rows


def findings_of(rows, tokenizer, *, context_length=4096, **data) -> list[Finding]:
    """Of rows named "rows row 1" and on; `data` are fields of DataConfig."""
    raw = collect_rows(rows, name="rows")
    config = DataConfig(**data)
    limits = {"data": config, "context_length": context_length}
    return examine(raw, tokenize_rows(raw, tokenizer, **limits), tokenizer, **limits)


def codes_of(rows, tokenizer, **options) -> list[tuple[str, str]]:
    """(severity, code) of each finding."""
    return [(found.severity, found.code) for found in findings_of(rows, tokenizer, **options)]
