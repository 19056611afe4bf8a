"""What a rank tells about itself, and what is found of ranks that can not tell any more."""

import json
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from ftrecipes.config.errors import PeerError, RecipeError

# How a rank took leave: its work was done; or it ends by the finding, which it will tell.
ENDED = "ended"
WITH_THE_RUN = "ended with the run"


@dataclass(frozen=True)
class Report:
    """A rank by its own account; `count` grows with each report."""

    rank: int
    host: str
    pid: int
    place: str
    """Where the pid means something (processes.place)."""
    started: str
    count: int = 0
    phase: str = "start"
    idle_seconds: float = 0.0
    """Since its last progress."""
    left: str = ""
    """How it took leave (`ended`, `stopped by SIGTERM`); empty while it is at work."""

    @property
    def who(self) -> str:
        """The rank, and where to look for it."""
        return f"rank {self.rank} (host {self.host}, process {self.pid})"

    def to_json(self) -> str:
        """For the store."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str | bytes) -> "Report":
        """What `to_json` gave."""
        return Report(**json.loads(text))


@dataclass(frozen=True)
class Finding:
    """Why the run ends: published once, the same for all ranks."""

    ranks: tuple[int, ...]
    """Whom it is about."""
    text: str
    place: str = ""
    """Of the rank that failed, which tells its error itself; empty when nobody there can."""
    error: str = ""
    """Of the rank that failed, in its own words."""

    def to_json(self) -> str:
        """For the store."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str | bytes) -> "Finding":
        """What `to_json` gave."""
        content = json.loads(text)
        return Finding(**content | {"ranks": tuple(content["ranks"])})


def in_words(error: BaseException) -> str:
    """An error as the others tell it: our own as they are, others with name and place."""
    if isinstance(error, RecipeError):
        return str(error)
    name = "".join(traceback.format_exception_only(error)).strip()
    frames = traceback.extract_tb(error.__traceback__)
    return name + (f"\nat {frames[-1].filename}:{frames[-1].lineno}" if frames else "")


def comes_from_others(error: BaseException) -> bool:
    """Whether an error is, or was raised because of, a collective that failed."""
    from torch.distributed import DistError

    while error is not None:
        # gloo has no class of its own (torch 2.13); its messages begin with a file of its source.
        is_gloo = type(error) is RuntimeError and "gloo/" in str(error)
        if is_gloo or isinstance(error, (DistError, PeerError)):
            return True
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def failed(report: Report, error: BaseException) -> Finding:
    """A rank has an error of its own."""
    words = in_words(error)
    shown = words.replace("\n", "\n  ")
    text = f"{report.who} failed, and the run with it. Phase: {report.phase}.\n  {shown}"
    return Finding((report.rank,), text, place=report.place, error=words)


def died(reports: Sequence[Report]) -> Finding:
    """Processes of this machine are gone without a word."""
    text = (
        f"{_list(reports)} died without an error of its own, and the run ended.\n"
        f"{_phases(reports)}\n"
        "  expected: every process lives until the run ends\n"
        "  do: see what stands above, and whether the system killed it (`dmesg | grep -i kill`: "
        "out of memory); then start again"
    )
    return Finding(_ranks(reports), text)


def silent(reports: Sequence[Report], *, seconds: float) -> Finding:
    """Ranks of other machines have stopped sending signs of life."""
    text = (
        f"{_list(reports)} gave no sign of life for {seconds:.0f} s, and the run ended.\n"
        f"{_phases(reports)}\n"
        "  expected: a sign each second, whatever a process is doing\n"
        "  do: see whether the processes, their machine or the network between are gone; then "
        "start again"
    )
    return Finding(_ranks(reports), text)


def cut_off(reports: Sequence[Report], *, seconds: float, address: str) -> Finding:
    """The store does not answer: nothing is known any more of the ranks of other machines."""
    text = (
        f"The place where all processes meet ({address}) has not answered for {seconds:.0f} s, and"
        f" the run ended. There, or not to be reached any more: {_list(reports) or 'the launcher'}."
        f"\n{_phases(reports)}\n"
        "  do: see whether that machine, its torchrun or the network between are gone; then start "
        "again"
    )
    return Finding(_ranks(reports), text)


def gone_early(report: Report) -> Finding:
    """A rank took leave while others still needed it."""
    text = (
        f"{report.who} left before the others: {report.left}. Phase: {report.phase}.\n"
        "  expected: all processes end together\n"
        "  do: stop the launcher (torchrun), which stops all of them; then start again"
    )
    return Finding((report.rank,), text)


def stuck(
    reports: Mapping[int, Report], *, size: int, marks: Mapping[int, str], seconds: float
) -> Finding:
    """No progress for `seconds`; `marks` says of some ranks what is odd about them."""
    lines = []
    for rank in range(size):
        report = reports.get(rank)
        if report is None:
            lines.append(f"rank {rank}: never heard of")
            continue
        odd = marks.get(rank) or report.left
        since = odd or f"{report.idle_seconds:.0f} s since its last progress"
        lines.append(f"{report.who}: {report.phase}; {since}")
    text = (
        f"There was no progress for {seconds:.0f} s (--fsdp.timeout_seconds), and the run ended.\n"
        + "".join(f"  {line}\n" for line in lines)
        + "  do: see what the rank does that is not where the others are; raise "
        "--fsdp.timeout_seconds where one step takes longer"
    )
    return Finding(tuple(sorted(marks)), text)


def _list(reports: Sequence[Report]) -> str:
    return ", ".join(report.who for report in reports)


def _ranks(reports: Sequence[Report]) -> tuple[int, ...]:
    return tuple(report.rank for report in reports)


def _phases(reports: Sequence[Report]) -> str:
    return "\n".join(f"  last phase of rank {report.rank}: {report.phase}" for report in reports)
