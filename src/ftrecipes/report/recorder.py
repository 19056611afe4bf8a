"""What a run tells while it goes: metrics.jsonl, progress, log and memory in one place."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Protocol, Self

import torch

from ftrecipes.report.flops import FlopFormula
from ftrecipes.report.memory import MemoryMeter, describe, highest
from ftrecipes.report.metrics import MetricsFile
from ftrecipes.report.progress import Progress, progress_kind
from ftrecipes.report.throughput import Activity, Throughput, TimeSheet, clock, rate
from ftrecipes.report.trackers import Tracker, scalars
from ftrecipes.runtime import log


class Watcher(Protocol):
    """Looks at the work of some steps from outside."""

    def watch(self, step: int, write: Callable[..., None]) -> AbstractContextManager[None]:
        """Entered before step `step` and left after it; `write` adds a line to metrics.jsonl."""

    def close(self) -> None:
        """The run is over, however it ended."""


class Recorder:
    """Takes plain numbers of all ranks together from the loop; only rank 0 shows or writes them."""

    def __init__(
        self,
        path: Path,
        *,
        rank: int,
        device: torch.device,
        total_steps: int,
        first_step: int = 0,
        trackers: Sequence[Tracker] = (),
        watchers: Sequence[Watcher] = (),
        formula: FlopFormula | None = None,
        peak: float | None = None,
        gather: Callable[[dict[str, int]], list[dict[str, int]]] = lambda own: [own],
    ):
        """`watchers` are entered around each step; `formula` gives the FLOPs of a step, and `peak`
        is what the devices of all ranks could do in a second. `gather` gives the fields of all
        ranks to each of them."""
        self._total_steps = total_steps
        self._watchers = watchers
        self._formula = formula
        self._peak = peak
        self._gather = gather
        self._trackers = trackers
        self._samples: Counter[int] = Counter()
        self._throughput = Throughput()
        self._times = TimeSheet()
        self._memory = MemoryMeter(device)
        self._metrics = MetricsFile(path, rank=rank)
        self._progress = Progress(
            total_steps=total_steps, first_step=first_step, kind=progress_kind(rank)
        )
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._metrics)
        self._stack.enter_context(self._progress)
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._write("stopped", reason=f"{type(error).__name__}: {error}")
        for watcher in self._watchers:
            watcher.close()
        for tracker in self._trackers:
            tracker.close(failed=error is not None)
        self._stack.close()

    def watch(self, step: int) -> AbstractContextManager[object]:
        """Around the work of step `step`: a trace or a count where they were asked for."""
        stack = ExitStack()
        for watcher in self._watchers:
            stack.enter_context(watcher.watch(step, self._write))
        return stack

    def timed(self, activity: Activity) -> AbstractContextManager[None]:
        """Count the time inside as sampling or saving; steps and evaluations bring their own."""
        return self._times.measure(activity)

    def step(
        self,
        *,
        step: int,
        epoch: int,
        lr: float,
        loss: float | None,
        grad_norm: float | None,
        num_tokens: int,
        positions: int,
        rows: int,
        seconds: float,
        note: str,
        lengths: Sequence[int] = (),
    ) -> None:
        """One optimizer step. `grad_norm` is the norm before clipping; `note` says why there was
        no update, or is empty; `lengths` are the positions of each row."""
        flops = self._flops(lengths, num_tokens)
        self._throughput.add(
            seconds=seconds, num_tokens=num_tokens, positions=positions, flops=flops.get("flops", 0)
        )
        self._times.add("steps", seconds)
        fields = {
            "step": step,
            "epoch": epoch,
            "loss": loss,
            "lr": lr,
            "grad_norm": grad_norm,
            "num_tokens": num_tokens,
            "positions": positions,
            "rows": rows,
            "seconds": seconds,
            "tokens_per_second": self._throughput.tokens_per_second,
            "positions_per_second": self._throughput.positions_per_second,
            **flops,
            **(self._flop_rate() if flops else {}),
        }
        self._write("step", **fields, **({"note": note} if note else {}))
        if note:
            log.warning(f"step {step}: no update, {note}")
        self._progress.show(
            step,
            values={
                "loss": _number(loss, ".4f"),
                "lr": f"{lr:.2e}",
                "pre-clip norm": _number(grad_norm, ".3f"),
                "tokens/s": f"{self._throughput.tokens_per_second:.0f}",
            },
            seconds_left=self._throughput.seconds_for(self._total_steps - step),
        )

    def evaluation(
        self,
        *,
        step: int,
        epoch: int,
        loss: float,
        perplexity: float,
        num_tokens: int,
        positions: int,
        rows: int,
        total_rows: int,
        seconds: float,
        set_losses: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """One evaluation after `step` steps; 0 = before the first. `set_losses` are by data set."""
        self._times.add("evaluation", seconds)
        numbers = {"step": step, "epoch": epoch, "loss": loss, "perplexity": perplexity}
        numbers |= {"num_tokens": num_tokens, "positions": positions}
        numbers |= {"rows": rows, "total_rows": total_rows, "seconds": seconds}
        by_set = {f"loss/{name}": value for name, value in set_losses.items()}
        self._write("evaluation", **numbers, **by_set)
        share = f"{rows} rows" if rows == total_rows else f"{rows} of {total_rows} rows"
        log.info(
            f"evaluation after step {step}: loss {loss:.4f}, perplexity {perplexity:.4g} "
            f"({num_tokens} tokens in {share}, {clock(seconds)})"
            + "".join(f"; {name} {value:.4f}" for name, value in set_losses.items())
        )

    def epoch(self, *, step: int, epoch: int, loss: float | None, num_tokens: int) -> None:
        """End of an epoch: mean token loss of its steps while it was trained, and the memory, each
        field of the rank where it is highest. All ranks call it."""
        memory = highest(self._gather(self._memory.epoch()))
        self._write("epoch", step=step, epoch=epoch, loss=loss, num_tokens=num_tokens, **memory)
        log.info(
            f"epoch {epoch}: training loss {_number(loss, '.4f')} over {num_tokens} tokens; "
            f"{describe(memory)}"
        )

    def sample(self, *, step: int, prompt: str, answer: str) -> None:
        """What the model answers to one of the fixed prompts after `step` steps."""
        self._write("sample", step=step, prompt=prompt, answer=answer)
        self._samples[step] += 1
        name = f"samples/{self._samples[step]}"
        for tracker in self._trackers:
            tracker.sample(name=name, prompt=prompt, answer=answer, step=step)
        log.info(f"sample after step {step}: {prompt!r} -> {answer!r}")

    def early_stop(self, *, step: int, best_step: int, best_loss: float, evaluations: int) -> None:
        """Training ends here: the last `evaluations` were no better than that of `best_step`."""
        self._write(
            "early_stop",
            step=step,
            best_step=best_step,
            best_loss=best_loss,
            evaluations=evaluations,
        )
        log.info(
            f"training ends early, after step {step}: the last {evaluations} evaluations were no "
            f"better than loss {best_loss:.4f} after step {best_step}"
        )

    def end(self, *, step: int, tokens: int, positions: int, seconds: float) -> None:
        """End of the run: totals, and the memory at its peak. All ranks call it."""
        memory = highest(self._gather(self._memory.whole_run()))
        self._write(
            "end",
            step=step,
            tokens=tokens,
            positions=positions,
            seconds=seconds,
            tokens_per_second=rate(tokens, seconds),
            positions_per_second=rate(positions, seconds),
            **self._times.fields(),
            **memory,
        )
        log.info(
            f"trained {step} steps, {tokens} tokens in {positions} positions, in {clock(seconds)} "
            f"({rate(tokens, seconds):.0f} tokens/s, {rate(positions, seconds):.0f} positions/s); "
            f"time: {self._times.describe()}; highest: {describe(memory)}"
        )

    def _flops(self, lengths: Sequence[int], num_tokens: int) -> dict[str, int]:
        if self._formula is None:
            return {}
        # without a label that counts nothing is computed
        return {"flops": self._formula.count(lengths, num_tokens) if num_tokens else 0}

    def _flop_rate(self) -> dict[str, float]:
        per_second = self._throughput.flops_per_second
        share = {} if self._peak is None else {"mfu": per_second / self._peak}
        return {"tflops": per_second / 1e12} | share

    def _write(self, kind: str, **fields: object) -> None:
        self._metrics.write(kind, **fields)
        values = scalars(kind, fields)
        for tracker in self._trackers if values else ():
            tracker.numbers(values, step=fields["step"])


def _number(value: float | None, style: str) -> str:
    return "none" if value is None else format(value, style)
