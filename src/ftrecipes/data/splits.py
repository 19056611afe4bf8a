"""Training and validation rows of a run, as tokens and labels."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from ftrecipes.config.errors import DataError
from ftrecipes.config.prepared_folder import is_prepared
from ftrecipes.config.schema import RunConfig
from ftrecipes.config.sections import DataConfig
from ftrecipes.data.doctor import tell, verdict
from ftrecipes.data.findings import ORDER, Finding
from ftrecipes.data.findings_cache import examine_cached
from ftrecipes.data.mix import OFTEN, describe_draws, often_drawn
from ftrecipes.data.prepared import read_prepared
from ftrecipes.data.raws import load_raws
from ftrecipes.data.rows import RawRows, TokenRows
from ftrecipes.data.sets import parts_of, tokenize_split
from ftrecipes.runtime import log


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
    if isinstance(config.train.dataset, str) and is_prepared(config.train.dataset):
        found, findings = read_prepared(config, tokenizer)
        return Splits(found["train"], found.get("validation"), findings)
    faults: list[DataError] = []
    found: dict[str, TokenRows] = {}
    raws = load_raws(config, tokenizer, faults=faults)
    for split, raw in raws.items():
        try:
            found[split] = tokenize_split(
                raw, tokenizer, data=config.data, context_length=config.train.context_length
            )
        except DataError as fault:
            faults.append(fault)
    if faults:
        # Two parts of one file may have the same fault.
        raise DataError("\n\n".join(dict.fromkeys(map(str, faults)))) from faults[0]
    _report_absent(config.train.new_tokens, tokenizer, found["train"])
    findings = examine_sets(
        *(raws["train"], found["train"], tokenizer),
        data=config.data,
        context_length=config.train.context_length,
    )
    return Splits(found["train"], found.get("validation"), findings)


def examine_sets(
    raw: RawRows,
    rows: TokenRows,
    tokenizer: PreTrainedTokenizerBase,
    *,
    data: DataConfig,
    context_length: int,
) -> list[Finding]:
    """What there is to say of each data set of a split, the heaviest first."""
    found = [
        one
        for its_raw, its_rows, own in parts_of(raw, rows, data)
        for one in examine_cached(
            *(its_raw, its_rows, tokenizer), data=own, context_length=context_length
        )
    ]
    # What is about the tokenizer alone is found with each set.
    return sorted(dict.fromkeys(found), key=lambda one: ORDER.index(one.severity))


def report_splits(config: RunConfig, splits: Splits) -> None:
    """Tell in the log what was read, and what there is to say of it.

    Raises DataError for what must be mended first, and when there is nothing to stop early by.
    """
    _report("train", splits.rows)
    _report_sets(splits.rows, seed=config.train.seed)
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
        f"{split}: {len(rows)} rows of {rows.num_positions} positions, "
        f"{rows.num_tokens} of them trained tokens"
    )
    for line in rows.report:
        log.warning(f"{split}: {line}")


def _report_sets(rows: TokenRows, *, seed: int) -> None:
    for name, told in describe_draws(rows, seed=seed):
        log.info(f"train: {name}: {told}")
    often = often_drawn(rows)
    if often:
        log.warning(
            f"train: each row of {', '.join(often)} is trained {OFTEN} times an epoch or more: the "
            "model may learn them by heart (lower the weight, or give more rows)"
        )


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
    seen = set(rows.facts.used_ids.tolist())
    absent = [token for token in tokens if tokenizer.convert_tokens_to_ids(token) not in seen]
    if absent:
        rows.report.append(
            f"no row holds {', '.join(absent)}: the model will not learn what is not there "
            "(--new_tokens)"
        )
