"""Every causal language model of transformers, shrunk: three LoRA steps against plain PEFT.

    python benchmarks/coverage.py                      # all types, some 15 minutes on two cores
    python benchmarks/coverage.py --types llama,gpt2
    python benchmarks/coverage.py --quantization 4bit  # a few types, on 4-bit weights
    python benchmarks/coverage.py --write              # both in full, into docs/coverage.md

A type is trained by the recipe itself and, row by row, by transformers, PEFT and torch alone; the
losses of all steps and of the evaluation after them are compared; what is equal is trained once
more, on two ranks. Each type runs in processes of its own, so that one that dies takes no other
with it. The exit code is 1 when a type crashed or differs.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}

from benchmarks.coverage_ranks import try_ranks  # noqa: E402
from benchmarks.coverage_run import Attempt, try_type  # noqa: E402
from tests.tiny_families import TYPES, UNBUILT  # noqa: E402

PAGE = ROOT / "docs" / "coverage.md"
PACKAGES = ("torch", "transformers", "peft", "bitsandbytes")
LIMIT_SECONDS = 180
GOOD = {"equal", "refused"}
QUANTIZED_TYPES = (
    *("llama", "qwen3", "gpt2", "mixtral", "gpt_oss", "bloom", "opt", "phi3", "gemma2", "falcon"),
    *("qwen3_moe", "deepseek_v3", "llama4_text", "mamba2"),
)


@dataclass(frozen=True)
class Tried:
    """One type: in one process, and on two ranks when that was equal."""

    alone: Attempt
    together: Attempt | None = None

    @property
    def is_good(self) -> bool:
        """Whether nothing crashed or differs."""
        return all(attempt.outcome in GOOD for attempt in (self.alone, self.together) if attempt)


def main() -> int:
    """Print the table; 1 when a type crashed or differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--types", help="names of model types, with commas; default: all")
    parser.add_argument("--write", action="store_true", help="write docs/coverage.md as well")
    parser.add_argument("--quantization", choices=("4bit",), help="on quantized weights")
    options = parser.parse_args()
    if options.write and (options.types or options.quantization):
        parser.error("the page is written from everything")
    usual = QUANTIZED_TYPES if options.quantization else TYPES
    types = options.types.split(",") if options.types else usual
    attempts = attempt_all(types, options.quantization or "none")
    if options.write:
        quantized = attempt_all(QUANTIZED_TYPES, "4bit")
        PAGE.write_text(page(attempts, quantized), encoding="utf-8")
        attempts += quantized
    return 0 if all(tried.is_good for tried in attempts) else 1


def attempt_all(types: Iterable[str], quantization: str) -> list[Tried]:
    """Try the types and print their table."""
    attempts = [attempt(model_type, quantization) for model_type in types]
    sys.stdout.write(f"{totals(attempts)}\n\n{table(attempts)}\n\n")
    sys.stdout.flush()
    return attempts


def attempt(model_type: str, quantization: str) -> Tried:
    """Both attempts."""
    with tempfile.TemporaryDirectory() as folder:
        alone, together = attempt_alone(model_type, Path(folder), quantization), None
        if alone.outcome == "equal":
            together = try_ranks(model_type, Path(folder), alone.losses, quantization=quantization)
    tried = Tried(alone, together)
    sys.stderr.write(f"{' '.join(row_of(tried))}\n")
    return tried


def attempt_alone(model_type: str, folder: Path, quantization: str) -> Attempt:
    """The attempt in a forked process, with a limit on its time."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_attempt, args=(model_type, folder, quantization, sender))
    process.start()
    sender.close()
    result = Attempt(model_type, "crashed", why=f"no end within {LIMIT_SECONDS} s")
    try:
        if receiver.poll(LIMIT_SECONDS):
            result = receiver.recv()
    except EOFError:
        result = Attempt(model_type, "crashed", why="the process died")
    process.terminate()
    process.join()
    return result


def _send_attempt(model_type: str, folder: Path, quantization: str, sender: Connection) -> None:
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        # what libraries write while a model is built and saved is not of interest
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        sender.send(try_type(model_type, folder, quantization=quantization))


def page(attempts: list[Tried], quantized: list[Tried]) -> str:
    """docs/coverage.md."""
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return "\n".join(
        [
            "# Model types",
            "",
            "<!-- Written by `python benchmarks/coverage.py --write`; do not edit. -->",
            "",
            f"- {totals(attempts)}",
            f"- On 4-bit weights: {totals(quantized)}",
            "",
            f"{datetime.now(UTC).date()}, {versions}, two CPU cores, float32.",
            "",
            INTRODUCTION,
            "",
            table(attempts),
            "",
            "## On 4-bit weights",
            "",
            QUANTIZED,
            "",
            table(quantized),
            "",
            "## Not tried",
            "",
            *markdown(("type", "why"), sorted(UNBUILT.items())),
            "",
        ]
    )


INTRODUCTION = """\
Every model type for which transformers has a causal language model is built small with random
weights and trained by the recipe for three steps of LoRA on all its linear layers (four rows of
unlike length in a batch, Adam at 2e-3). Beside it the same adapter is trained by transformers, PEFT
and torch alone, each row by itself. `difference` is the largest relative difference between the
losses of the steps and of the evaluation after them; up to 3e-5 is rounding, which Adam enlarges.

*flat*: rows lie end to end, each attends to itself. *padded*: transformers pads and masks them.
*chunked*: logits are made in chunks where labels count; *own*: by the model, where labels count;
*full*: by the model, at every position. *refused*: the recipe says before training why not.
`seconds` are those of the recipe, saving included.

*two ranks*: the same rows and steps with `--enable_fsdp` on two processes, each of which reads and
keeps its share of the model; the largest relative difference from the losses of one process."""

QUANTIZED = """\
The same with `--quantization 4bit` (nf4, double quantization). The reference rounds the weights as
bitsandbytes does, and multiplies at full size. `quantized` is the share of the weights that are
stored in 4 bits (the embedding and the head, which are not, weigh much in a model this small)."""


def totals(attempts: list[Tried]) -> str:
    """Two sentences with the numbers."""
    paths = Counter(tried.alone.path.split(",")[0] for tried in attempts if tried.alone.path)
    ways = ", ".join(f"{count} {path}" for path, count in sorted(paths.items()))
    alone = _outcomes([tried.alone for tried in attempts])
    together = _outcomes([tried.together for tried in attempts if tried.together])
    return f"{len(attempts)} types tried: {alone} ({ways}). On two ranks: {together or 'none'}."


def _outcomes(attempts: list[Attempt]) -> str:
    counts = Counter(attempt.outcome for attempt in attempts)
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))


def table(attempts: list[Tried]) -> str:
    """Markdown, one line a type."""
    rows = [row_of(tried) for tried in attempts]
    heads = ("type", "outcome", "path", "difference", "seconds", "two ranks", "why")
    if any(tried.alone.share for tried in attempts):
        heads = (*heads, "quantized")
        rows = [(*row, tried.alone.share) for row, tried in zip(rows, attempts, strict=True)]
    return "\n".join(markdown(heads, rows))


def row_of(tried: Tried) -> tuple[str, ...]:
    """The cells of one line."""
    alone, together = tried.alone, tried.together
    return (
        *(alone.model_type, alone.outcome, alone.path, _difference(alone)),
        f"{alone.seconds:.1f}" if alone.losses else "",
        " ".join([together.outcome, _difference(together)]).strip() if together else "",
        "; on two ranks: ".join(why for why in (alone.why, together and together.why) if why),
    )


def _difference(attempt: Attempt) -> str:
    return "" if attempt.difference is None else f"{attempt.difference:.1e}"


def markdown(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """A table's lines."""
    lines = [heads, ("---",) * len(heads), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


if __name__ == "__main__":
    sys.exit(main())
