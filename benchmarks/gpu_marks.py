"""docs/gpu.md: which tests that need a GPU have run on one, from the report of the last such run.

    python -m pytest -m gpu --junitxml=gpu.xml    # on a machine with a GPU
    python benchmarks/gpu_marks.py gpu.xml        # writes docs/gpu.md

Without a report the page keeps what it says of each test, and new ones have not yet run.
"""

import ast
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "gpu.md"
NOT_YET = "not yet run on a GPU"
HEAD = """\
# What has run on a GPU

<!-- Written by `python benchmarks/gpu_marks.py REPORT.xml`; do not edit. -->

Everything else is tested on CPUs. These tests need a CUDA device and skip where there is none;
MPS and XPU have no tests and have never been tried.

| test | what it shows | state |
|---|---|---|
"""
LINE = re.compile(r"^\| `(\S+)` \| .* \| (.+) \|$", re.M)


def main(words: list[str]) -> int:
    """Write the page from a report, or anew without one."""
    known = dict(LINE.findall(PAGE.read_text(encoding="utf-8"))) if PAGE.exists() else {}
    if words:
        known |= states(Path(words[0]))
    rows = gpu_tests().items()
    lines = [f"| `{name}` | {what} | {known.get(name, NOT_YET)} |\n" for name, what in rows]
    PAGE.write_text(HEAD + "".join(lines), encoding="utf-8")
    sys.stdout.write(f"{len(lines)} tests\n")
    return 0


def gpu_tests() -> dict[str, str]:
    """Marked tests, as `model/test_attention::test_x` -> the first line of their documentation."""
    found = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        room = path.relative_to(ROOT / "tests").with_suffix("").as_posix()
        whole = any(_is_mark(node) for node in tree.body if isinstance(node, ast.Assign))
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            if whole or any(map(_is_mark, node.decorator_list)):
                what = (ast.get_docstring(node) or "").split("\n")[0].replace("|", "/")
                found[f"{room}::{node.name}"] = what
    return found


def _is_mark(node: ast.AST) -> bool:
    """Whether `pytest.mark.gpu` is in it."""
    return any(
        isinstance(part, ast.Attribute) and part.attr == "gpu" and _name(part.value) == "mark"
        for part in ast.walk(node)
    )


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else ""


def states(report: Path) -> dict[str, str]:
    """State of each test that ran; of a test with parameters, the worst. Skipped ones are left out.

    Device and versions are properties of the report, put there by tests/conftest.py.
    """
    suite = next(ElementTree.parse(report).getroot().iter("testsuite"))
    facts = {each.get("name"): each.get("value") for each in suite.iter("property")}
    day = suite.get("timestamp", "").split("T")[0]
    found: dict[str, str] = {}
    for case in suite.iter("testcase"):
        room = case.get("classname", "").removeprefix("tests.").replace(".", "/")
        name = f"{room}::{case.get('name', '').split('[')[0]}"
        if case.find("skipped") is not None:
            continue
        failed = case.find("failure") is not None or case.find("error") is not None
        if failed or not found.get(name, "").startswith("failed"):
            word = "failed" if failed else "run"
            found[name] = f"{word} on a GPU on {day}: {facts['device']}, {facts['versions']}"
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
