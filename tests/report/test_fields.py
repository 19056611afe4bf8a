"""The table of fields in docs/loop.md, against what a recorder writes."""

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest
import torch

from ftrecipes.report.flop_counter import FlopCounter
from ftrecipes.report.flops import FlopFormula
from ftrecipes.report.memory import _DEVICE_FIELDS
from ftrecipes.report.recorder import Recorder

PAGE = Path(__file__).parents[2] / "docs" / "loop.md"
MPS = {"device_allocated_bytes", "device_driver_bytes"}
EVERYWHERE = {"kind", "unix_seconds"}


def table() -> dict[str, set[str]]:
    """Kind -> fields, as the page has them."""
    fields = defaultdict(set)
    for kind, name in re.findall(r"^\| (\w+) \| (\w+) \| ", PAGE.read_text(), re.MULTILINE):
        if kind != "kind":
            assert name not in fields[kind], f"{kind} {name} twice"
            fields[kind].add(name)
    return fields


def use_every_verb(path: Path) -> None:
    """A run that writes a line of each kind, and is interrupted at its end."""
    count = {"num_tokens": 1, "positions": 2, "rows": 1, "seconds": 0.1}
    step = {"lr": 0.1, "loss": 1.0, "grad_norm": 1.0, "note": "why", "lengths": [2], **count}
    with Recorder(
        path,
        rank=0,
        device=torch.device("cpu"),
        total_steps=1,
        watchers=[FlopCounter(1)],
        formula=FlopFormula(1, 1, {}),
        peak=1.0,
    ) as run:
        run.evaluation(step=0, epoch=0, loss=1.0, perplexity=2.7, total_rows=1, **count)
        run.sample(step=0, prompt="one", answer="two")
        with run.watch(1):
            pass
        run.step(step=1, epoch=1, **step)
        run.epoch(step=1, epoch=1, loss=1.0, num_tokens=1)
        run.early_stop(step=1, best_step=0, best_loss=1.0, evaluations=1)
        run.end(step=1, tokens=1, positions=2, seconds=0.1)
        raise KeyboardInterrupt


def written(path: Path) -> dict[str, set[str]]:
    """Kind -> fields of the lines in a file."""
    fields = defaultdict(set)
    for line in map(json.loads, path.read_text().splitlines()):
        assert set(line) >= EVERYWHERE
        fields[line["kind"]] |= set(line) - EVERYWHERE
    return fields


def test_the_table_lists_exactly_the_fields_that_a_run_writes(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        use_every_verb(tmp_path / "metrics.jsonl")
    fields, listed = written(tmp_path / "metrics.jsonl"), table()
    memory = {name for name in fields["epoch"] if name.startswith("host_")}
    fields["epoch"] |= {*_DEVICE_FIELDS.values(), *MPS}
    listed["end"] |= memory  # "the memory fields of the epochs too"
    assert dict(fields) == dict(listed)
    assert sum(map(len, listed.values())) > 60
