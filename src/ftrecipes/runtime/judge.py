"""What reports and process ids say of the other ranks: who died, who is silent, who is stuck."""

import time
from dataclasses import dataclass

from ftrecipes.runtime import findings, processes
from ftrecipes.runtime.findings import Finding, Report
from ftrecipes.runtime.post import Post

# Why the ranks are looked at more closely.
_SILENCE, _IDLE, _COLLECTIVE = "silence", "idle", "collective"


@dataclass(frozen=True)
class Patience:
    """After how many seconds the watch does what; a run whose peer is gone ends within a minute."""

    look: float = 1.0
    """Between two looks, and between two signs of life."""
    silent: float = 30.0
    """Without a sign of life of another machine. Less is the pause of a busy switch, or of one call
    that keeps all threads of a process waiting; more, and a minute is not enough."""
    store: float = 20.0
    """Without an answer of the store; before `silent`, which can not be told from it."""
    second_look: float = 5.0
    """Of all ranks, once one is suspected; several signs of life long."""
    grace: float = 10.0
    """For the main thread to end by itself, once the run is over."""
    own_grace: float = 30.0
    """The same after an error of its own, whose traceback is written and whose trackers close."""


class Clock:
    """Seconds during which this process ran. While it was stopped, or one call kept all its threads
    waiting, the others did not fall silent: it did not listen."""

    def __init__(self, longest_tick: float):
        self._longest_tick = longest_tick
        self._ticked_at = time.monotonic()
        self._seconds = 0.0

    def __call__(self) -> float:
        return self._seconds

    def tick(self) -> None:
        """Go on; called by one thread, at least each `longest_tick` seconds."""
        now = time.monotonic()
        self._seconds += min(now - self._ticked_at, self._longest_tick)
        self._ticked_at = now


class Judge:
    """Looks at what is known, and finds what ends the run. `post.wanted` follows from it.

    Processes of this machine are judged by their ids, which tell at once and never err. Others are
    by signs of life: each rank listens to the next one, so that somebody listens to every machine,
    and to all once one is suspected. A machine is silent when all its ranks are.
    """

    def __init__(
        self, post: Post, *, me: Report, size: int, clock: Clock, patience: Patience, address: str
    ):
        self._post = post
        self._me = me
        self._size = size
        self._next = (me.rank + 1) % size
        self._clock = clock
        self._patience = patience
        self._address = address
        self._neighbours: dict[int, Report] = {}
        self._gone_at: dict[int, float] = {}
        self._suspected: tuple[str, float] | None = None

    @property
    def is_calm(self) -> bool:
        """Whether nobody is suspected, and every neighbour lives or took leave."""
        gone = [rank for rank in self._gone_at if not self._post.reports[rank].left]
        return self._suspected is None and not gone

    def suspect(self) -> None:
        """A collective of this rank failed: look at all now."""
        self._suspected = (_COLLECTIVE, self._clock())

    def tells(self, finding: Finding) -> bool:
        """Whether this rank tells a finding of others: one of each machine, the lowest that can."""
        if finding.place and finding.place == self._me.place:
            return False
        return not any(
            rank < self._me.rank
            and self._lives(rank)
            and not processes.is_stopped(report.pid)
            and self._post.reports[rank].left in ("", findings.WITH_THE_RUN)
            for rank, report in self._neighbours.items()
        )

    def look(self, own: Report, *, timeout_seconds: float) -> Finding | None:
        """One look; `own` is what this rank reports now."""
        self._meet_neighbours()
        suspected = self._suspected is not None
        others = range(self._size) if suspected else (*self._neighbours, self._next)
        self._post.wanted = frozenset(others) - {self._me.rank}
        found = self._find_dead() or self._find_cut_off() or self._find_early()
        if found:
            return found
        if self._suspected is None:
            if own.idle_seconds > timeout_seconds:
                self._suspected = (_IDLE, self._clock())
            elif self._is_silent(self._next, since=self._clock() - self._patience.silent):
                self._suspected = (_SILENCE, self._clock())
            return None
        return self._find_suspect(own, timeout_seconds)

    def _meet_neighbours(self) -> None:
        for rank, report in list(self._post.reports.items()):
            if rank in self._neighbours or rank == self._me.rank:
                continue
            # Seen alive once: whatever two machines have in common, not that.
            if self._is_here(report):
                self._neighbours[rank] = report

    def _is_alive(self, report: Report) -> bool:
        return processes.started(report.pid) == report.started

    def _is_here(self, report: Report) -> bool:
        return report.place == self._me.place != "" and self._is_alive(report)

    def _lives(self, rank: int) -> bool:
        return rank in self._neighbours and self._is_alive(self._neighbours[rank])

    def _find_dead(self) -> Finding | None:
        for rank in self._neighbours:
            if not self._lives(rank):
                self._gone_at.setdefault(rank, self._clock())
        # Who took leave said so before it went: its report must be younger than its end, unless the
        # store does not answer.
        answers = self._clock() - self._post.contact_at < 3 * self._patience.look
        dead = [
            self._post.reports[rank]
            for rank, gone_at in self._gone_at.items()
            if self._post.read_at[rank] > gone_at or not answers
        ]
        dead = [report for report in dead if not report.left]
        return findings.died(dead) if dead else None

    def _find_cut_off(self) -> Finding | None:
        seconds = self._clock() - self._post.contact_at
        failed = self._suspected is not None and self._suspected[0] == _COLLECTIVE
        if seconds <= (self._patience.second_look if failed else self._patience.store):
            return None
        first = self._post.reports.get(0)
        lost = [
            report
            for rank, report in sorted(self._post.reports.items())
            if first and report.place == first.place and not self._lives(rank)
        ]
        lost = [report for report in lost if report.rank != self._me.rank]
        return findings.cut_off(lost, seconds=seconds, address=self._address)

    def _find_early(self) -> Finding | None:
        """A rank that was stopped long ago: the others have not been, and would wait for it."""
        since = self._clock() - self._patience.silent
        for rank in self._post.wanted:
            report = self._post.reports.get(rank)
            was_stopped = report is not None and report.left not in ("", findings.ENDED)
            if was_stopped and self._post.moved_at[rank] < since:
                return findings.gone_early(report)
        return None

    def _is_silent(self, rank: int, *, since: float) -> bool:
        report = self._post.reports.get(rank)
        if report is None or report.left or self._lives(rank) or rank == self._me.rank:
            return False
        return self._post.moved_at[rank] < since

    def _find_suspect(self, own: Report, timeout_seconds: float) -> Finding | None:
        reason, began = self._suspected
        if self._clock() - began <= self._patience.second_look:
            return None
        # The first read after `began` may show a report that was new long before.
        since = began + self._patience.second_look / 2
        silent = [rank for rank in range(self._size) if self._is_silent(rank, since=since)]
        heard = {r.place for n, r in self._post.reports.items() if n not in silent and not r.left}
        heard.discard(self._me.place)
        gone = [self._post.reports[n] for n in silent if self._post.reports[n].place not in heard]
        gone = [report for report in gone if not self._is_here(report)]
        early = [r for r in self._post.reports.values() if r.left and r.rank != self._me.rank]
        self._suspected = None
        if gone:
            return findings.silent(gone, seconds=self._silence(gone))
        if reason == _COLLECTIVE and early:
            return findings.gone_early(early[0])
        # A rank that was only slow has moved on meanwhile.
        if reason == _IDLE and own.idle_seconds > timeout_seconds:
            marks = dict.fromkeys(silent, "no sign of life") | self._stopped()
            reports = self._post.reports | {own.rank: own}
            return findings.stuck(reports, size=self._size, marks=marks, seconds=timeout_seconds)
        return None

    def _silence(self, gone: list[Report]) -> float:
        return self._clock() - max(self._post.moved_at[report.rank] for report in gone)

    def _stopped(self) -> dict[int, str]:
        return {
            rank: "its process is stopped (SIGSTOP, or a debugger)"
            for rank, report in self._neighbours.items()
            if processes.is_stopped(report.pid)
        }
