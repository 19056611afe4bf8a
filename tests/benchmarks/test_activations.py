"""The script of the table of activations: its counting, by hand and against torch's allocator, and
what the table says."""

import re
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import noop_context_fn

from benchmarks.activations import (
    CHOICES,
    FLAG,
    HEAD,
    MODEL,
    PAGE,
    PLACE,
    POSITIONS,
    Row,
    Trial,
    build,
    build_model,
    line,
    measure,
)
from benchmarks.activations_kept import Kept, allocated_by, calls_of, kept_by, products_in
from ftrecipes.parallel.offload import HostStash
from ftrecipes.parallel.recompute import Recomputed, recompute
from ftrecipes.parallel.selective import keeping_ops

CPU = torch.device("cpu")
ROWS, WIDTH = 32, 8
STATES = 4 * ROWS * WIDTH  # bytes
# torch.utils.checkpoint keeps the random state of the host for each module
RANDOM_STATE = 5056
TINY = {
    "hidden_size": 256,  # 16 times the rank of the adapters, as any real one is
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
}
TINY_POSITIONS = 64
OFFLOADED = next(flags for flags in CHOICES if "offload" in flags)
TINY_STATES = 4 * TINY_POSITIONS * TINY["hidden_size"]


class Block(nn.Module):
    """Keeps x and, four times as wide, what goes into the activation and what comes out of it."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return x * table + self.down(torch.tanh(self.up(x)).relu())


class Stack(nn.Module):
    """Three blocks, which share a table."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self) -> torch.Tensor:
        states, table = self.first(torch.ones(ROWS, WIDTH)), torch.ones(ROWS, WIDTH).cumsum(0)
        for block in self.blocks:
            states = block(states, table=table)
        return states.square().sum()


@pytest.mark.parametrize(
    ("contexts", "keeping", "kept_blocks", "again"),
    [
        # what tanh and relu make: the backward of each, and of the product behind, needs no more
        (None, None, 1 + 4 + 4, 0),
        # the recompute ends where the second product begins: its result is kept by nobody
        (noop_context_fn, nullcontext, 1, 1),
        # the results of both products
        (keeping_ops(), nullcontext, 1 + 4 + 1, 0),
        (noop_context_fn, HostStash(CPU).keeping, 1, 1),
    ],
)
def test_what_is_kept_is_what_a_hand_counts(contexts, keeping, kept_blocks, again):
    plain, model = Stack(), Stack()
    if contexts is not None:
        recompute(model, list(model.blocks), contexts=contexts, keeping=keeping)
    kept = kept_by(model.blocks, model)
    assert kept.total_bytes == 3 * kept_blocks * STATES
    assert kept.host_bytes == (0 if keeping in (None, nullcontext) else kept.total_bytes)
    assert kept.products == 3 * 2
    in_step, in_plain_step = (products_in(lambda m=m: m().backward()) for m in (model, plain))
    assert in_step - in_plain_step == 3 * again
    assert calls_of(model.blocks, lambda: model().backward()) == (1 if contexts is None else 2)


@pytest.mark.parametrize("is_full", [False, True])
def test_a_frozen_block_at_the_bottom_keeps_nothing_and_is_computed_once(is_full):
    model = Stack()
    for part in (model.first, model.blocks[0]):
        part.requires_grad_(False)
    if is_full:
        recompute(model, list(model.blocks))
    kept = kept_by(model.blocks, model)
    assert kept.total_bytes == 2 * (1 if is_full else 9) * STATES
    assert calls_of(model.blocks, lambda: model().backward()) == (5 / 3 if is_full else 1)


@pytest.fixture(scope="module")
def trials(tmp_path_factory) -> list[Trial]:
    """Those of the table, with a tiny model."""
    folder = tmp_path_factory.mktemp("model")
    build_model(folder, **TINY)
    return [build(folder, flags, device=CPU, positions=TINY_POSITIONS) for flags in CHOICES]


@pytest.fixture(scope="module")
def rows(trials) -> dict[str, Row]:
    return {row.flags: row for row in measure(trials, rounds=1)}


def test_the_allocator_says_the_same(trials, rows):
    """What a forward leaves in blocks is all that choices differ in: the head and the embedding are
    the same. A selective recompute keeps nothing beyond what is counted."""
    plain = rows[CHOICES[0]]
    plain_bytes, _ = allocated_by(CPU, trials[0].forward)
    assert 0 <= plain_bytes - plain.kept.total_bytes < 2 * TINY_STATES + 50_000
    for trial in trials:
        parts = {part for block in trial.blocks for part in block.modules()}
        wrappers = sum(isinstance(part, Recomputed) for part in parts)
        found, _ = allocated_by(CPU, trial.forward)
        expected = plain_bytes - plain.kept.total_bytes + rows[trial.flags].kept.total_bytes
        assert found == pytest.approx(expected + wrappers * RANDOM_STATE, rel=0.01)


def test_full_keeps_the_inputs_of_blocks_alone(rows):
    for quantization in ("", "--quantization 4bit "):
        sizes = [rows[f"{quantization}{FLAG} {way}"].kept for way in ("full", "selective", "none")]
        full, selective, none = (kept.total_bytes for kept in sizes)
        assert full == pytest.approx(TINY["num_hidden_layers"] * TINY_STATES, rel=0.05)
        assert full < selective < none
    assert rows[OFFLOADED].kept.total_bytes == full
    # the first block's input comes from the frozen embedding, and stays
    for_host = {flags: row.kept.host_bytes for flags, row in rows.items() if row.kept.host_bytes}
    assert for_host == {OFFLOADED: full - TINY_STATES}


def test_what_is_computed_again(rows):
    forwards = {row.flags: row.forwards for row in rows.values()}
    assert forwards == {
        flags: 1 if "none" in flags or "target" in flags else 1.5 if "every_n" in flags else 2
        for flags in CHOICES
    }
    again = {flags: row.products_again / row.kept.products for flags, row in rows.items()}
    assert again[f"{FLAG} none"] == again[f"{FLAG}.target norm"] == 0
    # second matrices of adapters, but for narrow ones (k, v) and the last, where a recompute ends
    assert again[f"{FLAG} selective"] == 4 / 22
    assert 0.45 < again[f"{FLAG}.every_n 2"] < 0.5
    assert 0.9 < again[f"{FLAG} full"] < 1


def test_the_table_of_the_page():
    table = PLACE.search(PAGE.read_text(encoding="utf-8")).group()
    found = re.findall(
        r"^\| `([^`]+)` \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| (\d+) of (\d+) "
        r"\| ([\d.]+) \|$",
        table,
        re.M,
    )
    assert [flags for flags, *_ in found] == list(CHOICES)
    kept = {flags: float(megabytes) for flags, megabytes, *_ in found}
    states = 4e-6 * POSITIONS * MODEL["hidden_size"]
    for quantization in ("", "--quantization 4bit "):
        full, selective, none = (
            kept[f"{quantization}{FLAG} {way}"] for way in ("full", "selective", "none")
        )
        assert full == pytest.approx(MODEL["num_hidden_layers"] * states, rel=0.05)
        assert full < selective < none
    assert {flags for flags, *numbers in found if float(numbers[1])} == {OFFLOADED}
    # three products of each of seven linear layers, and attention
    assert {int(numbers[-2]) for _, *numbers in found} == {MODEL["num_hidden_layers"] * 22}


def test_the_table_is_put_between_its_marks():
    text = PAGE.read_text(encoding="utf-8")
    assert len(PLACE.findall(text)) == 1
    row = Row("--x 1", Kept(2_000_000, 1_000_000, 22), 3_000_000, 1.5, 11, 1.25)
    written = PLACE.sub(rf"\g<1>\n{HEAD}{line(row)}\n\g<2>", text)
    assert "| `--x 1` | 2.0 | 1.0 | 3.0 | 1.5 | 11 of 22 | 1.25 |" in written
    assert PLACE.sub(rf"\g<1>\n{HEAD}{line(row)}\n\g<2>", written) == written
    assert written.startswith(text[: text.index("<!-- activations")])
