"""The script of docs/coverage.md: a few types through it, and whether the page knows all types."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import coverage, coverage_run
from benchmarks.coverage import Tried
from benchmarks.coverage_ranks import End, judge
from benchmarks.coverage_run import TOLERANCE, Attempt, try_type
from tests.tiny_families import TYPES, UNBUILT

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "coverage.md"


@pytest.mark.parametrize(
    ("model_type", "quantization", "path"),
    [
        ("llama", "none", "flat, chunked"),
        ("bloom", "none", "padded, chunked"),
        ("mllama", "none", "padded, own"),
        ("mixtral", "4bit", "flat, chunked"),
    ],
)
def test_a_type_trains_as_plain_peft_does(model_type, quantization, path, tmp_path):
    attempt = try_type(model_type, tmp_path, quantization=quantization)
    assert (attempt.outcome, attempt.path) == ("equal", path), attempt
    assert 0 <= attempt.difference < TOLERANCE
    assert bool(attempt.share) == (quantization == "4bit")
    assert bool(attempt.why) == path.startswith("padded")


def test_a_type_that_can_not_be_trained_is_refused_with_the_reason(tmp_path):
    attempt = try_type("xlnet", tmp_path)
    assert attempt.outcome == "refused"
    assert "looks ahead" in attempt.why


def test_what_is_wrong_is_seen(tmp_path, monkeypatch):
    """Another rate from the second step on, no movement at all, and a type that does not exist."""
    train = coverage_run.reference.train

    def slower(model, steps, *, lr, max_norm):
        return train(model, steps, lr=lambda step: lr / (1 + step), max_norm=max_norm)

    with monkeypatch.context() as patch:
        patch.setattr(coverage_run.reference, "train", slower)
        assert try_type("llama", tmp_path / "rate").outcome == "differs"
    with monkeypatch.context() as patch:
        patch.setattr(coverage_run, "LR", 1e-9)
        assert try_type("llama", tmp_path / "still").outcome == "unmoved"
    assert try_type("lama", tmp_path / "none").outcome == "crashed"


def test_a_type_comes_back_from_processes_of_its_own():
    """As a person runs it: this process has threads by now, which a fork does not survive."""
    script = [sys.executable, "benchmarks/coverage.py", "--types", "gpt2"]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "| gpt2 | equal | flat, chunked |" in done.stdout
    assert "1 types tried: 1 equal (1 flat). On two ranks: 1 equal." in done.stdout


@pytest.mark.parametrize(
    ("ends", "outcome", "why"),
    [
        ([End("trained", [1.0, 2.0]), End("trained", [1.0, 2.0])], "equal", ""),
        ([End("trained", [1.0, 2.0]), End("trained", [1.0, 2.1])], "differs", ""),
        ([End("refused", why="no"), End("refused", why="no")], "refused", "no"),
        ([End("told", why="peer"), End("refused", why="no")], "refused", "no"),
        ([End("refused", why="no"), End("failed", why="KeyError")], "crashed", "KeyError"),
        ([End("trained", [1.0, 2.0]), End("refused", why="no")], "refused", "no"),
        ([End("trained", [1.0, 2.0]), End("told", why="peer")], "crashed", "peer"),
        ([End("told", why="peer"), End("told", why="peer")], "crashed", "peer"),
    ],
)
def test_what_the_ends_of_two_ranks_mean(ends, outcome, why):
    attempt = judge("llama", ends, [1.0, 2.0], seconds=1.0)
    assert (attempt.outcome, attempt.why) == (outcome, why)


def test_the_table_has_a_line_a_type_and_the_totals_count_them():
    attempts = [
        Tried(
            Attempt("a", "equal", "flat, chunked", "", 1e-7, 0.5, "80%", (1.0, 2.0)),
            Attempt("a", "equal", difference=2e-7, seconds=1.5),
        ),
        Tried(Attempt("b", "refused", why="no | room")),
        Tried(
            Attempt("c", "equal", "padded, own", "a mask", 1e-7, 0.5, "90%", (1.0, 2.0)),
            Attempt("c", "refused", why="no blocks"),
        ),
    ]
    assert coverage.totals(attempts) == (
        "3 types tried: 2 equal, 1 refused (1 flat, 1 padded). On two ranks: 1 equal, 1 refused."
    )
    assert coverage.table(attempts).splitlines()[2:] == [
        "| a | equal | flat, chunked | 1.0e-07 | 0.5 | equal 2.0e-07 |  | 80% |",
        "| b | refused |  |  |  |  | no \\| room |  |",
        "| c | equal | padded, own | 1.0e-07 | 0.5 | refused | a mask; on two ranks: no blocks "
        "| 90% |",
    ]
    assert all(tried.is_good for tried in attempts)
    assert not Tried(attempts[0].alone, Attempt("a", "crashed")).is_good


def test_the_page_has_every_type_and_no_fault():
    """Types, not numbers: a new one must be tried before the page says that all are."""
    tables = [section_types(title) for title in ("# Model types", "## On 4-bit", "## Not tried")]
    assert tables == [TYPES, list(coverage.QUANTIZED_TYPES), sorted(UNBUILT)]
    assert len(TYPES) >= 190
    rows = re.findall(r"^\| [\w-]+ \|(?: [^|]* \|){5}", PAGE.read_text("utf-8"), re.M)
    cells = [[cell.strip() for cell in row.split("|")[2:7]] for row in rows]
    heads = {("outcome", "two"), ("---", "---")}
    outcomes = {(row[0], row[4].split(" ")[0]) for row in cells} - heads
    assert outcomes == {("equal", "equal"), ("refused", "")}


def section_types(title: str) -> list[str]:
    """First cells of the table below a heading, without its head and the line under it."""
    section = PAGE.read_text(encoding="utf-8").split(f"{title}", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\| ([\w-]+) \|", section, re.M)[2:]
