"""What a run tells while it goes: metrics.jsonl, progress, log and memory in one place."""

from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from ftrecipes.report.memory import MemoryMeter, describe
from ftrecipes.report.metrics import MetricsFile
from ftrecipes.report.progress import Progress, progress_kind
from ftrecipes.report.throughput import Activity, Throughput, TimeSheet, clock, rate
from ftrecipes.runtime import log


class Recorder:
    """Takes plain numbers from the loop on every rank; only rank 0 shows or writes them."""

    def __init__(
        self, path: Path, *, rank: int, device: torch.device, total_steps: int, first_step: int = 0
    ):
        self._total_steps = total_steps
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
        self._stack.close()

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
    ) -> None:
        """One optimizer step. `grad_norm` is the norm before clipping; `note` says why there was
        no update, or is empty."""
        self._throughput.add(seconds=seconds, num_tokens=num_tokens, positions=positions)
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
    ) -> None:
        """One evaluation after `step` steps; 0 = before the first."""
        self._times.add("evaluation", seconds)
        self._write(
            "evaluation",
            step=step,
            epoch=epoch,
            loss=loss,
            perplexity=perplexity,
            num_tokens=num_tokens,
            positions=positions,
            rows=rows,
            total_rows=total_rows,
            seconds=seconds,
        )
        share = f"{rows} rows" if rows == total_rows else f"{rows} of {total_rows} rows"
        log.info(
            f"evaluation after step {step}: loss {loss:.4f}, perplexity {perplexity:.4g} "
            f"({num_tokens} tokens in {share}, {clock(seconds)})"
        )

    def epoch(self, *, step: int, epoch: int, loss: float | None, num_tokens: int) -> None:
        """End of an epoch: mean token loss of its steps while it was trained, and the memory."""
        memory = self._memory.epoch()
        self._write("epoch", step=step, epoch=epoch, loss=loss, num_tokens=num_tokens, **memory)
        log.info(
            f"epoch {epoch}: training loss {_number(loss, '.4f')} over {num_tokens} tokens; "
            f"{describe(memory)}"
        )

    def sample(self, *, step: int, prompt: str, answer: str) -> None:
        """What the model answers to one of the fixed prompts after `step` steps."""
        self._write("sample", step=step, prompt=prompt, answer=answer)
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
        """End of the run: totals, and the memory at its peak."""
        memory = self._memory.whole_run()
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

    def _write(self, kind: str, **fields: object) -> None:
        self._metrics.write(kind, **fields)


def _number(value: float | None, style: str) -> str:
    return "none" if value is None else format(value, style)
