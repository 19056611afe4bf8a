"""Training and validation rows of a run, as tokens and labels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from ftrecipes.config.errors import DataError
from ftrecipes.config.schema import RunConfig
from ftrecipes.data.cache import tokenize_cached
from ftrecipes.data.doctor import examine, tell, verdict
from ftrecipes.data.findings import Finding
from ftrecipes.data.rows import RawRows, TokenRows
from ftrecipes.data.sources import load_split
from ftrecipes.runtime import log

FRACTION_SEED = 42
"""Its own, so that the same data give the same validation rows whatever `--seed` is."""


@dataclass(frozen=True)
class Splits:
    """The rows of a run, and what the check of template and rows says of those to train on."""

    rows: TokenRows
    val_rows: TokenRows | None
    findings: list[Finding]


def read_splits(config: RunConfig, tokenizer: PreTrainedTokenizerBase) -> Splits:
    """The training rows, and the rows to evaluate on or None when there are none.

    With `data.val_fraction` the validation rows are cut off before anything else happens to the
    rows. Raises DataError with the faults of both splits.
    """
    faults: list[DataError] = []
    found: dict[str, TokenRows] = {}
    raws = load_raws(config, tokenizer, faults=faults)
    for split, raw in raws.items():
        try:
            found[split] = tokenize_cached(
                raw, tokenizer, data=config.data, context_length=config.train.context_length
            )
        except DataError as fault:
            faults.append(fault)
    if faults:
        # Two parts of one file may have the same fault.
        raise DataError("\n\n".join(dict.fromkeys(map(str, faults)))) from faults[0]
    _report_absent(config.train.new_tokens, tokenizer, found["train"])
    findings = examine(
        *(raws["train"], found["train"], tokenizer),
        data=config.data,
        context_length=config.train.context_length,
    )
    return Splits(found["train"], found.get("validation"), findings)


def report_splits(config: RunConfig, splits: Splits) -> None:
    """Tell in the log what was read, and what there is to say of it.

    Raises DataError for what must be mended first, and when there is nothing to stop early by.
    """
    _report("train", splits.rows)
    if splits.val_rows is None:
        _report_no_validation(config)
    else:
        _report("validation", splits.val_rows)
    refusal = verdict(splits.findings, strict=config.data.strict)
    if refusal is not None:
        raise refusal
    tell(splits.findings)


def _report(split: str, rows: TokenRows) -> None:
    log.info(
        f"{split}: {len(rows)} rows of {rows.input_ids.size} positions, "
        f"{rows.num_tokens} of them trained tokens"
    )
    for line in rows.report:
        log.warning(f"{split}: {line}")


def _report_no_validation(config: RunConfig) -> None:
    patience = config.train.early_stopping_patience
    if patience:
        raise DataError(
            f"--early_stopping_patience {patience}: there are no validation rows to stop by.\n"
            "  do: name some with --data.val_file, or cut some off with --data.val_fraction"
        )
    if config.train.run_validation:
        log.info(
            "there are no validation rows, so nothing is evaluated (--data.val_fraction or "
            "--data.val_file makes some)"
        )


def _report_absent(
    tokens: Sequence[str], tokenizer: PreTrainedTokenizerBase, rows: TokenRows
) -> None:
    """A new token that no row has keeps the embedding it starts with."""
    seen = set(np.unique(rows.input_ids).tolist())
    absent = [token for token in tokens if tokenizer.convert_tokens_to_ids(token) not in seen]
    if absent:
        rows.report.append(
            f"no row holds {', '.join(absent)}: the model will not learn what is not there "
            "(--new_tokens)"
        )


def load_raws(
    config: RunConfig, tokenizer: PreTrainedTokenizerBase, *, faults: list[DataError]
) -> dict[str, RawRows]:
    """The raw rows of each split that there is, by name; what goes wrong is added to `faults`."""
    fraction = config.data.val_fraction
    raws: dict[str, RawRows | None] = {}
    for split in ("train",) if fraction else ("train", "validation"):
        try:
            raws[split] = load_split(config, tokenizer, split)
        except DataError as fault:
            faults.append(fault)
    if fraction and not faults:
        raws["train"], raws["validation"] = cut_fraction(raws["train"], fraction)
        raws["validation"] = raws["validation"] if config.train.run_validation else None
    found = {split: raw for split, raw in raws.items() if raw is not None}
    prints = [raw.fingerprint for raw in found.values()]
    if len(prints) == 2 and prints[0] == prints[1] and prints[0] is not None:
        log.warning(
            f"the validation rows ({found['validation'].name}) are the training rows: evaluation "
            "will not tell how the model does on others (--data.val_fraction sets some aside)"
        )
    return found


def cut_fraction(raw: RawRows, fraction: float) -> tuple[RawRows, RawRows]:
    """Training and validation rows: `fraction` of `raw`, rounded down, is for validation.

    Which rows depends on their number and `fraction` alone; both parts keep the order. Raises
    DataError when that is not one row.
    """
    count = int(len(raw) * fraction + 1e-9)
    if count == 0 and len(raw):
        raise DataError(
            f"--data.val_fraction {fraction} of the {len(raw)} rows of {raw.name} is not one row.\n"
            "  expected: one row or more to evaluate on\n"
            "  do: take a larger share, or leave it out"
        )
    # MT19937's legacy stream is frozen by NumPy (NEP 19).
    drawn = set(np.random.RandomState(FRACTION_SEED).permutation(len(raw))[:count].tolist())
    parts = []
    for part in ("train", "validation"):
        chosen = [index for index in range(len(raw)) if (index in drawn) == (part != "train")]
        fingerprint = raw.fingerprint and f"{raw.fingerprint} {part} {fraction}"
        parts.append(raw.pick(chosen, fingerprint=fingerprint))
    return parts[0], parts[1]
