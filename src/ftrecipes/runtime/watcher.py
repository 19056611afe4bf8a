"""The watch of one rank among several: its own account, and how its process comes to an end."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ftrecipes.config.errors import PeerError, RecipeError
from ftrecipes.runtime import findings
from ftrecipes.runtime.findings import Finding, Report
from ftrecipes.runtime.judge import Clock, Judge, Patience
from ftrecipes.runtime.post import Post
from ftrecipes.runtime.signals import PEER_SIGNAL, ignore_stops

if TYPE_CHECKING:
    from torch.distributed import Store

POLL_SECONDS = 0.05
# When the main thread waits for a look, it is not to take a second; nor is the store of hundreds of
# ranks to be asked twenty times a second for long.
HURRIED_LOOKS = 10
HOOK_SECONDS = 5.0


class Watcher(threading.Thread):
    """A Watch (watch.py). The thread looks after the others, and ends the process when the run is
    over: an exception in the main thread first, and `patience.grace` seconds later os._exit, as a
    main thread inside a collective does not see exceptions."""

    def __init__(
        self,
        store: "Store",
        me: Report,
        *,
        size: int,
        timeout_seconds: float,
        patience: Patience,
        address: str,
    ):
        super().__init__(name="ftrecipes-watch", daemon=True)
        self._me = me
        self._size = size
        self._timeout_seconds = timeout_seconds
        self._patience = patience
        self._clock = Clock(longest_tick=max(3.0, 2 * patience.look))
        self._post = Post(
            store, size=size, report=self._report, clock=self._clock, seconds=patience.look
        )
        self._judge = Judge(
            self._post, me=me, size=size, clock=self._clock, patience=patience, address=address
        )
        self._phase = me.phase
        self._progress_at = self._clock()
        self._count = 0
        self._left = ""
        self._draft: tuple[Finding, float] | None = None
        """A finding on its way to the store, and since when."""
        self._ending: tuple[Finding, float] | None = None
        """The finding by which this process ends, and since when it is known here."""
        self._own: BaseException | None = None
        self._peer_error: PeerError | None = None
        self._is_leaving = self._has_explained = False
        self._at_end: list[Callable[[str], None]] = []
        self._looks = 0
        self._wake = threading.Event()
        self._closing = threading.Event()

    def phase(self, text: str) -> None:
        """See Watch."""
        self._phase = text
        self._progress_at = self._clock()

    def beat(self) -> None:
        """See Watch."""
        self._progress_at = self._clock()

    def at_end(self, action: Callable[[str], None]) -> None:
        """See Watch."""
        self._at_end.append(action)

    def failed(self, error: BaseException) -> None:
        """See Watch. `error.is_told` says afterwards whether a neighbour tells the same words."""
        if self._own is not None:
            return
        self._is_leaving, self._own = True, error
        mine = findings.failed(self._report(), error)
        self._post.publish(mine)
        self._wait(lambda: self._post.finding is not None, seconds=3 * self._patience.look)
        first = self._post.finding or mine
        is_same = first.error == mine.error and first.ranks != mine.ranks
        if isinstance(error, RecipeError):
            error.is_told = is_same and first.place == mine.place != ""

    def explain(self, error: BaseException) -> PeerError | None:
        """See Watch."""
        if self._has_explained:
            return None
        self._has_explained = self._is_leaving = True
        # torchrun stops the rest as soon as one process has ended: no news any more.
        ignore_stops()
        found = self._explain(error)
        is_stop = found is None and self._own is None and error is not self._peer_error
        self._left = (str(error) or "stopped") if is_stop else findings.WITH_THE_RUN
        self._take_leave(self._patience.second_look)
        return found

    def _explain(self, error: BaseException) -> PeerError | None:
        if error is self._peer_error:
            return None
        if isinstance(error, KeyboardInterrupt):
            looks, rounds = self._looks + 2, self._post.rounds + 2
            self._wait(
                lambda: self._looks >= looks and self._post.rounds >= rounds and self._is_settled(),
                seconds=self._patience.second_look,
            )
            return self._peer_error
        if findings.comes_from_others(error):
            if self._ending is None:
                self._judge.suspect()
            self._wait(self._is_settled, seconds=3 * self._patience.second_look)
            if self._peer_error is not None:
                return self._peer_error
        self.failed(error)
        return None

    def listen(self, *_: object) -> None:
        """See Watch; also the handler of PEER_SIGNAL. The main thread learns of it once."""
        if self._peer_error is not None and not self._is_leaving:
            self._is_leaving = True
            raise self._peer_error

    def start(self) -> None:
        """Start both threads."""
        self._post.start()
        super().start()

    def close(self) -> None:
        """The body is over, without an error: take leave."""
        self._is_leaving, self._left = True, findings.ENDED
        self._closing.set()
        self._wake.set()
        self.join(self._patience.second_look)
        self._take_leave(self._patience.store)
        self._post.close()
        self._post.join(self._patience.second_look)

    def run(self) -> None:
        """The thread."""
        while not self._closing.is_set():
            self._wake.clear()
            self._clock.tick()
            if self._ending is None:
                self._look()
            else:
                self._press(*self._ending)
            self._looks += 1
            seconds = self._patience.look
            self._wake.wait(seconds if self._post.all_there else seconds / 10)

    def _look(self) -> None:
        if self._post.finding is not None:
            self._take(self._post.finding)
            return
        if self._draft is not None:
            finding, drafted_at = self._draft
            # The store does not answer; what was seen here holds all the same.
            if self._clock() - drafted_at > 3 * self._patience.look:
                self._take(finding)
            return
        own = self._report()
        if self._is_leaving:
            own = replace(own, idle_seconds=0.0)
        finding = self._judge.look(own, timeout_seconds=self._timeout_seconds)
        if finding is not None:
            self._draft = finding, self._clock()
            self._post.publish(finding)

    def _take(self, finding: Finding) -> None:
        if self._own is None:
            error = PeerError(finding.text)
            error.is_told = not self._judge.tells(finding)
            self._peer_error = error
        self._ending = finding, self._clock()
        if not self._is_leaving:
            # A real signal, unlike _thread.interrupt_main, also ends the wait of a system call.
            signal.pthread_kill(threading.main_thread().ident, PEER_SIGNAL)

    def _press(self, finding: Finding, since: float) -> None:
        own = self._own
        grace = self._patience.grace if own is None else self._patience.own_grace
        if self._clock() - since <= grace:
            return
        error = own or self._peer_error
        name = f"rank {self._me.rank}: " if own else ""
        if not (isinstance(error, RecipeError) and error.is_told):
            sys.stderr.write(f"error: {name}{findings.in_words(error)}\n")
            sys.stderr.flush()
        for action in self._at_end:
            # In a thread, as the disk may be gone with the machine that died.
            hook = threading.Thread(target=action, args=(finding.text,), daemon=True)
            hook.start()
            hook.join(HOOK_SECONDS)
        os._exit(error.exit_code if isinstance(error, RecipeError) else 1)

    def _report(self) -> Report:
        self._count += 1
        return replace(
            self._me,
            count=self._count,
            phase=self._phase,
            idle_seconds=self._clock() - self._progress_at,
            left=self._left or (findings.WITH_THE_RUN if self._ending else ""),
        )

    def _is_settled(self) -> bool:
        nothing = self._judge.is_calm and self._draft is None and self._post.finding is None
        return nothing or self._ending is not None

    def _take_leave(self, seconds: float) -> None:
        """Go when the others can read how; rank 0 last, as the store may live in its process."""
        rounds = self._post.rounds + 2
        self._wait(lambda: self._post.rounds >= rounds, seconds=3 * self._patience.look)
        if self._me.rank == 0:
            gone = self._ending[0].ranks if self._ending else ()
            self._post.wanted = frozenset(range(1, self._size)) - set(gone)
            self._wait(self._others_left, seconds=seconds)

    def _others_left(self) -> bool:
        reports = self._post.reports
        return not self._post.is_alive() or all(
            rank in reports and reports[rank].left for rank in self._post.wanted
        )

    def _wait(self, is_over: Callable[[], bool], *, seconds: float) -> None:
        """In the main thread, for the two others."""
        deadline = time.monotonic() + seconds
        hurried = 0
        while not is_over() and time.monotonic() < deadline:
            if hurried < HURRIED_LOOKS:
                self._wake.set()
                self._post.hurry()
                hurried += 1
            time.sleep(POLL_SECONDS)
