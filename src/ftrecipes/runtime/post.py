"""The store, as the watch uses it: reports of the ranks, and the one finding that ends a run."""

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ftrecipes.runtime.findings import Finding, Report

if TYPE_CHECKING:
    from torch.distributed import Store

FINDING = "watch/finding"
THERE = "watch/there"


class Post(threading.Thread):
    """Exchanges reports each `seconds`, in a thread of its own: a store behind a broken link never
    answers (torch 2.13 sets no limit to TCPStore.check), and whoever asked it waits for ever.

    The attributes are read by others, each a value that is put in place whole.
    """

    def __init__(
        self,
        store: "Store",
        *,
        size: int,
        report: Callable[[], Report],
        clock: Callable[[], float],
        seconds: float,
    ):
        super().__init__(name="ftrecipes-post", daemon=True)
        self.reports: dict[int, Report] = {}
        self.moved_at: dict[int, float] = {}
        """When the report of a rank was last seen to be a new one."""
        self.read_at: dict[int, float] = {}
        """When the report of a rank was last read; it may be older than it looks."""
        self.finding: Finding | None = None
        self.contact_at = clock()
        """When the store last answered."""
        self.rounds = 0
        self.wanted: frozenset[int] = frozenset()
        """Ranks whose reports are read each time; all of them once, when all are there."""
        self._store = store
        self._all = range(size)
        self._report = report
        self._clock = clock
        self._seconds = seconds
        self._draft: Finding | None = None
        self._is_there = self._all_there = False
        self._wake = threading.Event()
        self._closing = threading.Event()

    @property
    def all_there(self) -> bool:
        """Whether every rank has reported once."""
        return self._all_there

    def publish(self, finding: Finding) -> None:
        """Make `finding` that of the run, unless there is one; `self.finding` tells which it is."""
        self._draft = self._draft or finding
        self._wake.set()

    def hurry(self) -> None:
        """Exchange now."""
        self._wake.set()

    def close(self) -> None:
        """Exchange once more, so that the others read how this rank left, and end."""
        self._closing.set()
        self._wake.set()

    def run(self) -> None:
        """The thread; it ends early when the connection breaks, and `contact_at` stands still."""
        from torch.distributed import DistError

        try:
            # The main thread's own client would be locked while it waits for something.
            store = self._store.clone()
            last = False
            while not last:
                last = self._closing.is_set()
                self._wake.clear()
                self._exchange(store)
                if not self._closing.is_set():
                    # At first fast: a rank that dies before it was seen alive is missed late.
                    self._wake.wait(self._seconds if self._all_there else self._seconds / 10)
        except DistError:
            # A broken connection is not mended; what it means the watch decides.
            return

    def _exchange(self, store: "Store") -> None:
        began = self._clock()
        if self.finding is None and self._draft is not None:
            claimed = store.compare_set(FINDING, "", self._draft.to_json())
            self.finding = Finding.from_json(claimed)
        elif self.finding is None and store.check([FINDING]):
            self.finding = Finding.from_json(store.get(FINDING))
        # After the finding: who has left without a word of it has died.
        report = self._report()
        store.set(_key(report.rank), report.to_json())
        if self._all_there:
            asked = sorted(self.wanted)
        else:
            there = store.add(THERE, 0 if self._is_there else 1)
            self._is_there, self._all_there = True, there == len(self._all)
            asked = self._all if self._all_there else self._present(store)
        self._read(store, asked, began)
        self.contact_at = self._clock()
        self.rounds += 1

    def _present(self, store: "Store") -> list[int]:
        # One question a rank: only of the few that are asked for while not all are there.
        return [rank for rank in sorted(self.wanted) if store.check([_key(rank)])]

    def _read(self, store: "Store", ranks: Iterable[int], now: float) -> None:
        ranks = list(ranks)
        texts = store.multi_get([_key(rank) for rank in ranks]) if ranks else []
        for rank, text in zip(ranks, texts, strict=True):
            report, known = Report.from_json(text), self.reports.get(rank)
            if known is None or known.count != report.count:
                self.moved_at[rank] = now
            self.reports[rank] = report
            self.read_at[rank] = now


def _key(rank: int) -> str:
    return f"watch/report/{rank}"
