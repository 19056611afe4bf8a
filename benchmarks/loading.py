"""What loading a model into shares takes: bytes read, memory and seconds of each rank.

    python benchmarks/loading.py            # 1, 2 and 4 ranks, both ways; some minutes on two cores
    python benchmarks/loading.py --write    # the same, into the table of docs/memory.md

A random Llama of some 570 MB in bfloat16 is written to a temporary folder, and loaded on CPUs with
--low_cpu_fsdp on (each rank reads its share) and off (each reads all, and torch cuts it), in 4 bits
and plain in float32.
"""

import argparse
import json
import os
import platform
import re
import sys
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "TQDM_DISABLE": "1"}

import torch  # noqa: E402
from transformers import AutoModelForCausalLM, LlamaConfig  # noqa: E402

from benchmarks.loading_run import Load  # noqa: E402
from tests import ranks  # noqa: E402

PAGE = ROOT / "docs" / "memory.md"
PLACE = re.compile(r"(<!-- loading: .*? -->\n).*?(<!-- end of loading -->)", re.S)
SIZES = (1, 2, 4)
WEIGHTS = {"4bit": "4-bit", "none": "float32"}
WAYS = {"on": "its share", "off": "everything"}
LIMIT_SECONDS = 900
MODEL = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "vocab_size": 8192,
}
HEAD = """\
| weights | ranks | each reads | MB read | peak MB | of these kept | seconds |
|---|---|---|---|---|---|---|
"""


def main() -> int:
    """Print the table, and write it when asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write docs/memory.md as well")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        build_model(Path(folder))
        rows = [HEAD]
        sys.stdout.write(HEAD)
        for method, size, way in product(WEIGHTS, SIZES, WAYS):
            rows.append(line(Path(folder), way, method, size=size))
            sys.stdout.write(rows[-1])
            sys.stdout.flush()
    table = "".join(rows)
    sys.stdout.write(f"\n{machine()}")
    if options.write:
        text = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(PLACE.sub(rf"\g<1>\n{table}\n{machine()}\n\g<2>", text), encoding="utf-8")
    return 0


def build_model(folder: Path, **changes: int) -> None:
    """Save a random Llama; `changes` to the config of the benchmark's own."""
    torch.manual_seed(0)
    config = LlamaConfig(**MODEL | changes)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)


def measure(model: Path, way: str, method: str, *, size: int) -> list[Load]:
    """What each of `size` ranks took; `way` is that of --low_cpu_fsdp."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["-m", "benchmarks.loading_run", str(model), way, method]
        codes = ranks.wait(ranks.start(arguments, Path(folder), size=size), limit=LIMIT_SECONDS)
        if any(codes):
            raise RuntimeError((Path(folder) / "rank0.log").read_text(encoding="utf-8"))
        files = [Path(folder) / f"rank{rank}.json" for rank in range(size)]
        return [Load(**json.loads(file.read_text(encoding="utf-8"))["load"]) for file in files]


def line(model: Path, way: str, method: str, *, size: int) -> str:
    """One line of the table, with the highest number of any rank in each column."""
    loads = measure(model, way, method, size=size)
    read, peak, kept, seconds = (
        max(getattr(load, field) for load in loads)
        for field in ("read_bytes", "peak_bytes", "kept_bytes", "seconds")
    )
    megabytes = " | ".join(f"{number / 1e6:.0f}" for number in (read, peak, kept))
    return f"| {WEIGHTS[method]} | {size} | {WAYS[way]} | {megabytes} | {seconds:.1f} |\n"


def machine() -> str:
    """Where and when it was measured."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    return (
        f"Measured on {datetime.now(UTC):%Y-%m-%d} on {os.cpu_count()} cores ({cpu_name()}), "
        f"one thread a rank, with {packages}.\n"
    )


def cpu_name() -> str:
    """As the system calls it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.machine()
    found = re.search(r"^model name\s*: (.+)$", text, re.M)
    return found.group(1) if found else platform.machine()


if __name__ == "__main__":
    sys.exit(main())
