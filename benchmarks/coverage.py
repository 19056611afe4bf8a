"""Every causal language model of transformers, shrunk: three LoRA steps against plain PEFT.

    python benchmarks/coverage.py                      # all types, about ten minutes on two cores
    python benchmarks/coverage.py --types llama,gpt2
    python benchmarks/coverage.py --quantization 4bit  # a few types, on 4-bit weights
    python benchmarks/coverage.py --write              # both in full, into docs/coverage.md

A type is trained by the recipe itself and, row by row, by transformers, PEFT and torch alone; the
losses of all steps and of the evaluation after them are compared. Each type runs in a process of
its own, so that one that dies takes no other with it. The exit code is 1 when a type crashed or
differs.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}

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
    return 0 if all(attempt.outcome in GOOD for attempt in attempts) else 1


def attempt_all(types: Iterable[str], quantization: str) -> list[Attempt]:
    """Try the types and print their table."""
    attempts = [attempt_alone(model_type, quantization) for model_type in types]
    sys.stdout.write(f"{totals(attempts)}\n\n{table(attempts)}\n\n")
    sys.stdout.flush()
    return attempts


def attempt_alone(model_type: str, quantization: str) -> Attempt:
    """The attempt in a forked process, with a limit on its time."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_attempt, args=(model_type, quantization, sender))
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
    sys.stderr.write(f"{' '.join(map(str, row_of(result)))}\n")
    return result


def _send_attempt(model_type: str, quantization: str, sender: Connection) -> None:
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        tempfile.TemporaryDirectory() as folder,
    ):
        # what libraries write while a model is built and saved is not of interest
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        sender.send(try_type(model_type, Path(folder), quantization=quantization))


def page(attempts: list[Attempt], quantized: list[Attempt]) -> str:
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
`seconds` are those of the recipe, saving included."""

QUANTIZED = """\
The same with `--quantization 4bit` (nf4, double quantization). The reference rounds the weights as
bitsandbytes does, and multiplies at full size. `quantized` is the share of the weights that are
stored in 4 bits (the embedding and the head, which are not, weigh much in a model this small)."""


def totals(attempts: list[Attempt]) -> str:
    """One sentence with the numbers."""
    outcomes = Counter(attempt.outcome for attempt in attempts)
    paths = Counter(attempt.path.split(",")[0] for attempt in attempts if attempt.path)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    ways = ", ".join(f"{count} {path}" for path, count in sorted(paths.items()))
    return f"{len(attempts)} types tried: {counts} ({ways})."


def table(attempts: list[Attempt]) -> str:
    """Markdown, one line a type."""
    rows = [row_of(attempt) for attempt in attempts]
    heads = ("type", "outcome", "path", "difference", "seconds", "why")
    if any(attempt.share for attempt in attempts):
        heads = (*heads, "quantized")
        rows = [(*row, attempt.share) for row, attempt in zip(rows, attempts, strict=True)]
    return "\n".join(markdown(heads, rows))


def row_of(attempt: Attempt) -> tuple[str, ...]:
    """The cells of one line."""
    trained = attempt.difference is not None
    return (
        attempt.model_type,
        attempt.outcome,
        attempt.path,
        f"{attempt.difference:.1e}" if trained else "",
        f"{attempt.seconds:.1f}" if trained else "",
        attempt.why,
    )


def markdown(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """A table's lines."""
    lines = [heads, ("---",) * len(heads), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


if __name__ == "__main__":
    sys.exit(main())
