""".ci/skips.py: what CI says of skipped tests, on reports that pytest itself writes."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALLOWED = ROOT / ".ci" / "allowed-skips.txt"
TESTS = """
import pytest

@pytest.mark.skipif(True, reason="needs a lathe")
@pytest.mark.parametrize("size", [1, 2])
def test_lathe(size): ...

def test_plain(): ...
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("suite")
    (folder / "test_shop.py").write_text(TESTS)
    path = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", folder]
    subprocess.run([*command, f"--junitxml={path}", folder], check=True, capture_output=True)
    return path


def skips(report: Path, allowed: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, ROOT / ".ci" / "skips.py", report, allowed]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_skip_in_the_list_is_shown_and_passes(report, tmp_path):
    allowed = tmp_path / "allowed.txt"
    allowed.write_text("# kept\ntest_shop::test_lathe  # there is none\n")
    done = skips(report, allowed)
    assert done.returncode == 0, done.stderr
    assert "skipped: test_shop::test_lathe[1]: needs a lathe" in done.stdout
    assert "skipped: test_shop::test_lathe[2]: needs a lathe" in done.stdout
    assert "3 tests, 2 skipped, 0 not allowed" in done.stdout


def test_a_skip_outside_the_list_fails(report, tmp_path):
    allowed = tmp_path / "allowed.txt"
    allowed.write_text("test_shop::test_lathes\n")
    done = skips(report, allowed)
    assert done.returncode == 1
    assert f"not in {allowed}: test_shop::test_lathe[1]" in done.stdout
    assert "2 not allowed" in done.stdout


def test_a_report_without_tests_fails(tmp_path):
    (tmp_path / "report.xml").write_text("<testsuites/>")
    assert skips(tmp_path / "report.xml", ALLOWED).returncode == 1


def test_the_list_names_tests_that_exist_each_with_a_reason():
    lines = [line for line in ALLOWED.read_text().splitlines() if not line.startswith("#")]
    assert len(lines) >= 2
    for line in lines:
        name, _, reason = line.partition("#")
        module, _, test = name.strip().partition("::")
        source = (ROOT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
        assert test in {
            node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)
        }
        assert reason.strip(), line
