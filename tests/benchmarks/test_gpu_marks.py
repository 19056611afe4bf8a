"""docs/gpu.md lists the tests that need a GPU, and says of each what a report says."""

import subprocess
import sys
from pathlib import Path

from benchmarks import gpu_marks

ROOT = Path(__file__).parents[2]
REPORT = """\
<testsuites><testsuite timestamp="2027-01-02T03:04:05">
<properties><property name="device" value="Lathe 9"/>
<property name="versions" value="torch 9.9"/></properties>
<testcase classname="tests.model.test_a" name="test_x[1]"><failure message="no"/></testcase>
<testcase classname="tests.model.test_a" name="test_x[2]"/>
<testcase classname="tests.model.test_a" name="test_y"/>
<testcase classname="tests.test_b" name="test_z"><skipped message="needs a lathe"/></testcase>
</testsuite></testsuites>
"""


def test_the_page_has_the_marked_tests_that_pytest_collects():
    """Collected from the files that hold the mark: a whole collection takes half a minute."""
    marked = gpu_marks.gpu_tests()
    page = dict(gpu_marks.LINE.findall(gpu_marks.PAGE.read_text(encoding="utf-8")))
    assert list(page) == list(marked), "run `python benchmarks/gpu_marks.py`"
    files = {f"tests/{name.split('::')[0]}.py" for name in marked}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "gpu"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", *sorted(files)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    collected = {
        line.removeprefix("tests/").replace(".py::", "::").split("[")[0]
        for line in done.stdout.splitlines()
        if "::" in line
    }
    assert collected == set(marked)
    assert len(marked) >= 13
    assert all(marked.values()), "each says in its first line what it shows"


def test_each_may_be_skipped_where_there_is_no_gpu():
    allowed = (ROOT / ".ci" / "allowed-skips.txt").read_text(encoding="utf-8")
    names = {line.split(" ")[0] for line in allowed.splitlines()}
    assert {f"tests.{name.replace('/', '.')}" for name in gpu_marks.gpu_tests()} <= names


def test_a_report_gives_each_test_its_state(tmp_path):
    report = tmp_path / "gpu.xml"
    report.write_text(REPORT)
    assert gpu_marks.states(report) == {
        "model/test_a::test_x": "failed on a GPU on 2027-01-02: Lathe 9, torch 9.9",
        "model/test_a::test_y": "run on a GPU on 2027-01-02: Lathe 9, torch 9.9",
    }


def test_without_a_report_the_page_keeps_what_it_said(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_marks, "PAGE", tmp_path / "gpu.md")
    assert gpu_marks.main([]) == 0
    text = gpu_marks.PAGE.read_text()
    assert text.count(gpu_marks.NOT_YET) == len(gpu_marks.gpu_tests())
    gpu_marks.PAGE.write_text(text.replace(gpu_marks.NOT_YET, "run on a GPU on a day", 1))
    gpu_marks.main([])
    assert gpu_marks.PAGE.read_text().count("run on a GPU on a day") == 1


def test_reports_say_which_device_and_versions(tmp_path):
    """What tests/conftest.py puts into a report of pytest's own."""
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    node = "tests/benchmarks/test_gpu_marks.py::test_each_may_be_skipped_where_there_is_no_gpu"
    subprocess.run(
        [*command, f"--junitxml={report}", node], cwd=ROOT, check=True, capture_output=True
    )
    [state] = gpu_marks.states(report).values()
    assert "transformers 5" in state
    assert "torch 2" in state
