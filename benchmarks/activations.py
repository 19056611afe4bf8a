"""What activation checkpointing keeps and costs: a Llama's blocks under each choice.

    python benchmarks/activations.py            # some three minutes on two cores
    python benchmarks/activations.py --write    # the same, into the table of docs/memory.md

A random Llama of eight blocks with LoRA on all linear layers takes one row of 1024 positions, built
as the flags of each row of the table say. Bytes and operators are counted (activations_kept.py);
seconds are those of forward and backward, in rounds that take every choice once, and the median
over the rounds of its ratio to the first choice on the same weights.
"""

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from transformers import AutoModelForCausalLM, LlamaConfig  # noqa: E402

from benchmarks.activations_kept import (  # noqa: E402
    Kept,
    allocated_by,
    calls_of,
    kept_by,
    products_in,
)
from benchmarks.loading import cpu_name  # noqa: E402
from ftrecipes.config.parse import parse_words  # noqa: E402
from ftrecipes.config.precision import resolve_precision  # noqa: E402
from ftrecipes.model.adapters import add_adapters  # noqa: E402
from ftrecipes.model.attention import ROW_ATTENTION  # noqa: E402
from ftrecipes.model.forward import LossRoute, causal_lm, decoder_of  # noqa: E402
from ftrecipes.model.load import load_model  # noqa: E402
from ftrecipes.model.resolve import resolve_source  # noqa: E402
from ftrecipes.parallel.wrap import blocks_of, lora_aware_wrap_policy  # noqa: E402
from ftrecipes.train.recomputing import recompute_as_asked  # noqa: E402
from ftrecipes.train.step import autocast  # noqa: E402

PAGE = ROOT / "docs" / "memory.md"
PLACE = re.compile(r"(<!-- activations: .*? -->\n).*?(<!-- end of activations -->)", re.S)
POSITIONS, ROUNDS = 1024, 7
MODEL = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 8192,
    "max_position_embeddings": POSITIONS,
}
FLAG = "--activation_checkpointing"
CHOICES = (
    f"{FLAG} none",
    f"{FLAG}.target norm",
    f"{FLAG}.target mlp",
    f"{FLAG}.target attention",
    f"{FLAG}.every_n 2",
    f"{FLAG} selective",
    f"{FLAG} full",
    f"{FLAG}.offload",
    f"--quantization 4bit {FLAG} none",
    f"--quantization 4bit {FLAG} selective",
    f"--quantization 4bit {FLAG} full",
)
HEAD = """\
| flags | kept MB | of these for the host | peak MB | forwards | products again | time |
|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Trial:
    """A model as the flags make it, and what one step of it computes."""

    flags: str
    blocks: Sequence[nn.Module]
    forward: Callable[[], Tensor]  # -> loss, with a graph
    device: torch.device

    def step(self) -> None:
        """Forward and backward, until the device is through."""
        self.forward().backward()
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def seconds(self) -> float:
        """What a step takes."""
        start = time.perf_counter()
        self.step()
        return time.perf_counter() - start


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    flags: str
    kept: Kept
    peak_bytes: int  # of a step, beyond what was there before
    forwards: float  # of a block in a step
    products_again: int
    time: float  # of a step, as a multiple of that without checkpointing


def main() -> int:
    """Print the table, and write it when asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write docs/memory.md as well")
    parser.add_argument("--device", default="cpu", help="cpu, or an accelerator (cuda)")
    options = parser.parse_args()
    device = torch.device(options.device)
    with tempfile.TemporaryDirectory() as folder:
        build_model(Path(folder))
        trials = [build(Path(folder), flags, device=device) for flags in CHOICES]
    text = f"{table(measure(trials, rounds=ROUNDS))}\n{machine(device)}"
    sys.stdout.write(text)
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(PLACE.sub(rf"\g<1>\n{text}\n\g<2>", page), encoding="utf-8")
    return 0


def build_model(folder: Path, **changes: int) -> None:
    """Save a random Llama; `changes` to the config of the benchmark's own."""
    torch.manual_seed(0)
    config = LlamaConfig(**MODEL | changes)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)


def build(folder: Path, flags: str, *, device: torch.device, positions: int = POSITIONS) -> Trial:
    """The saved model on `device`, trained by LoRA, checkpointed as the flags say."""
    run = ["--model_name", str(folder), "--use_peft", "True", "--dataset", "samsum_dataset"]
    words = [*run, "--output_dir", str(folder / "result"), *flags.split()]
    config = parse_words(words).config
    precision = resolve_precision(config, device_type=device.type, checkpoint_dtype="bfloat16")
    source = resolve_source(str(folder), None, trust_remote_code=False)
    model = add_adapters(load_model(source, config, precision, device), config, precision)
    model.train()
    recompute_as_asked(config, model, device)
    decoder_of(causal_lm(model)).set_attn_implementation(ROW_ATTENTION)
    route = LossRoute(flat=True, head="chunked", reason="one row")
    ids = torch.arange(positions, device=device) % model.config.vocab_size

    def forward() -> Tensor:
        with autocast(precision, device):
            return route.loss_sum(model, ids, ids, (positions,)) / positions

    return Trial(flags, blocks_of(lora_aware_wrap_policy(model)), forward, device)


def measure(trials: Sequence[Trial], *, rounds: int) -> list[Row]:
    """All numbers. A trial is compared with the last one before it that checkpoints nothing."""
    rows, seconds = [], [[] for _ in trials]
    for trial in trials:
        trial.step()  # the first one also makes gradients, and what libraries keep
    for _ in range(rounds):
        for trial, own in zip(trials, seconds, strict=True):
            own.append(trial.seconds())
    for trial, own in zip(trials, seconds, strict=True):
        in_step = products_in(trial.step)
        if trial.flags.endswith(f"{FLAG} none"):
            plain_step, plain_seconds = in_step, own
        rows.append(
            Row(
                flags=trial.flags,
                kept=kept_by(trial.blocks, trial.forward),
                peak_bytes=allocated_by(trial.device, trial.step)[1],
                forwards=calls_of(trial.blocks, trial.step),
                products_again=in_step - plain_step,
                time=median(map(float.__truediv__, own, plain_seconds)),
            )
        )
    return rows


def table(rows: Sequence[Row]) -> str:
    """As Markdown."""
    return HEAD + "".join(map(line, rows))


def line(row: Row) -> str:
    """One line of the table."""
    megabytes = (row.kept.total_bytes, row.kept.host_bytes, row.peak_bytes)
    sizes = " | ".join(f"{number / 1e6:.1f}" for number in megabytes)
    again = f"{row.products_again} of {row.kept.products}"
    return f"| `{row.flags}` | {sizes} | {row.forwards:.3g} | {again} | {row.time:.2f} |\n"


def machine(device: torch.device) -> str:
    """Where and when it was measured."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "peft"))
    threads = torch.get_num_threads()
    place = f"{threads} thread{'s' if threads > 1 else ''} of {os.cpu_count()} cores ({cpu_name()})"
    if device.type != "cpu":
        place = torch.get_device_module(device).get_device_name(device)
    return f"Measured on {datetime.now(UTC):%Y-%m-%d} on {place}, with {packages}.\n"


if __name__ == "__main__":
    sys.exit(main())
