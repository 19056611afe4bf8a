"""What of the totals a person should look at: the number, the row, and what mends it."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from ftrecipes.config.sections import DataConfig
from ftrecipes.data.findings import ORDER, Finding, Severity
from ftrecipes.data.loader import FEW_STEPS
from ftrecipes.data.mix import OFTEN
from ftrecipes.data.preview_totals import Packing, Pair, SplitTotals

FEW_TRAINED = 0.05
MANY_LOST = 0.05
LOW_FILL = 0.8
SHOWN = 3


@dataclass(frozen=True)
class Notice:
    """One thing to look at."""

    severity: Severity
    text: str
    source: str = ""
    """The first row that shows it."""
    mend: str = ""


def all_notices(
    totals: Sequence[SplitTotals],
    data: DataConfig,
    *,
    findings: Sequence[Finding],
    leaked: Sequence[Pair],
    packing: Packing,
    often: Sequence[str],
) -> list[Notice]:
    """What there is to look at, the worst first.

    `totals` are of the training rows, and of those to evaluate on; the findings are of the first.
    `often` names the sets whose rows are drawn very often.
    """
    train, *others = totals
    notices = [
        *notices_of(train, data, told={one.code for one in findings}),
        *(notice for each in others for notice in notices_of(each, data)),
        *map(finding_notice, findings),
        *leak_notice(leaked, val_rows=sum(each.kept for each in others)),
        *_repeats(often),
        *batch_notices(packing, train),
    ]
    return sorted(notices, key=lambda notice: ORDER.index(notice.severity))


def notices_of(
    totals: SplitTotals, data: DataConfig, *, told: Collection[str] = ()
) -> Iterator[Notice]:
    """What the totals of a split give reason to look at, but for what findings have told.

    `told` are their codes.
    """
    name = totals.name
    if totals.skipped:
        source, _, reason = totals.skipped[0].partition(": ")
        text = f"{len(totals.skipped)} of {totals.read} {name} rows can not be used"
        mend = "correct them; --data.on_bad_row skip trains on the others"
        severity = "error" if data.on_bad_row == "error" else "warning"
        yield Notice(severity, f"{text}; the first: {reason}", source, mend)
    known = set(totals.long) if "prompt-too-long" in told else set()
    if totals.muted:
        text = f"{len(totals.muted)} {name} rows have no answer left to train"
        mend = '"train": true or "weight": 1 at an answer, if they are to be trained'
        why = 'each is left out by "train": false or "weight": 0'
        yield Notice("warning", f"{text}: {why}", totals.muted[0], mend)
    yield from (Notice("warning", f"{name}: {remark}") for remark in totals.remarks)
    known |= set(totals.muted)
    untrained = [source for source in totals.untrained if source not in known]
    if untrained:
        text = f"{len(untrained)} of {totals.kept} {name} rows have no token to train on"
        mend = "look whether their answers were cut off (--context_length, --data.truncation)"
        yield Notice("warning", f"{text} and are passed over", untrained[0], mend)
    yield from _of_length(
        totals,
        truncation=data.truncation,
        is_told=not {"answer-cut", "prompt-too-long"}.isdisjoint(told),
    )
    if totals.empty_answers:
        text = f"{len(totals.empty_answers)} {name} rows have an answer without a word in it"
        mend = "the model would learn to say nothing: correct or remove them"
        yield Notice("warning", text, totals.empty_answers[0], mend)
    if totals.share < FEW_TRAINED:
        text = f"only {totals.share:.1%} of the positions of {name} are trained"
        yield Notice("info", text, mend="look whether the answers in a row are all marked trained")
    if totals.duplicates:
        later, first = totals.duplicates[0]
        text = f"{len(totals.duplicates)} {name} rows have the same tokens as an earlier one"
        yield Notice("info", f"{text}; the first is that of {first}", later, "remove them")


def _of_length(totals: SplitTotals, *, truncation: str, is_told: bool) -> Iterator[Notice]:
    if totals.long_answers:
        text = f"{len(totals.long_answers)} {totals.name} rows have an answer that alone is longer"
        mend = "raise --context_length"
        yield Notice("warning", f"{text} than the context", totals.long_answers[0], mend)
    if not totals.long or is_told:
        return
    usable = totals.read - len(totals.skipped)
    before = totals.tokens + totals.lost_tokens
    text = f"{len(totals.long)} of {usable} {totals.name} rows are longer than the context"
    mend = "raise --context_length, or choose another --data.truncation"
    if truncation == "error":
        yield Notice("error", f"{text} (shown cut at the right)", totals.long[0], mend)
        return
    done = {"drop": "dropped", "split": "split"}.get(truncation, f"cut at the {truncation}")
    text += f" and are {done}: {totals.lost_tokens} of {before} tokens to train on are lost"
    is_much = totals.lost_tokens > MANY_LOST * before
    yield Notice("warning" if is_much else "info", text, totals.long[0], mend if is_much else "")


def finding_notice(found: Finding) -> Notice:
    """What the check of template and rows found."""
    tokens = f"\ntokens: {found.shown}" if found.tokens else ""
    text = f"{found.code}: {found.text}{tokens}"
    return Notice(found.severity, text, found.source, found.mend)


def leak_notice(pairs: Sequence[Pair], *, val_rows: int) -> Iterator[Notice]:
    """Validation rows that are trained on."""
    if pairs:
        found, trained = pairs[0]
        text = (
            f"{len(pairs)} of {val_rows} validation rows have the same tokens as a training row; "
            f"the first is {found}"
        )
        mend = "take them out of one of the two; evaluation looks better than it is"
        yield Notice("warning", text, trained, mend)


def _repeats(often: Sequence[str]) -> Iterator[Notice]:
    if often:
        text = f"each row of {', '.join(often)} is trained {OFTEN} times an epoch or more"
        mend = "lower the weight, or give more rows: the model may learn them by heart"
        yield Notice("warning", text, mend=mend)


def batch_notices(packing: Packing, totals: SplitTotals) -> Iterator[Notice]:
    """Of how the rows lie in micro-batches."""
    if packing.capacity and packing.micro_batches > 1 and packing.fill < LOW_FILL:
        text = f"micro-batches are {packing.fill:.0%} full"
        yield Notice("info", text, mend="raise --batch_size_training or --context_length")
    if packing.steps < FEW_STEPS and totals.kept >= FEW_STEPS:
        text = f"an epoch of {totals.kept} rows is {packing.steps} optimizer steps"
        mend = (
            "for more and smaller steps lower --batch_size_training, --context_length or "
            "--gradient_accumulation_steps, or use --batching_strategy padding"
        )
        yield Notice("info", text, mend=mend)
