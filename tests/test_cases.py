"""tests/cases.yaml: every case of other tools has tests here, or waits for its feature."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import yaml

TESTS = Path(__file__).parent
CASES = yaml.safe_load((TESTS / "cases.yaml").read_text(encoding="utf-8"))
# How many there are of each kind; a case that is left out of the list is noticed.
KINDS = {
    **{"M": 17, "D": 11, "P": 10, "G": 10, "Q": 8, "A": 10, "R": 9, "C": 6, "X": 8},
    **{"F": 7, "E": 6, "S": 21, "V": 6},
}


@cache
def names_in(module: str) -> frozenset[str]:
    """Names of the test functions of a module, given as `data/test_files`."""
    tree = ast.parse((TESTS / f"{module}.py").read_text(encoding="utf-8"))
    return frozenset(
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def test_each_named_test_exists():
    missing, seen = [], 0
    for case, names in CASES["tests"].items():
        assert names, case
        for name in names:
            seen += 1
            module, _, test = name.partition("::")
            if not (TESTS / f"{module}.py").is_file() or test not in names_in(module):
                missing.append(f"{case}: {name}")
    assert missing == []
    assert seen >= 130


def test_every_case_is_proved_or_waits():
    waiting = {case for cases in CASES["waiting"].values() for case in cases}
    known = waiting | CASES["tests"].keys()
    assert Counter(case[0] for case in known) == KINDS, known
    assert all(len(case) == 3 and case[1:].isdigit() for case in known)
    assert len(CASES["tests"]) >= 97


def test_what_one_process_can_do_waits_for_nothing():
    """Masking, data, packing and the command line wait for several processes only."""
    several = set(CASES["waiting"]["several processes"])
    others = {case for cases in CASES["waiting"].values() for case in cases} - several
    assert not [case for case in others if case[0] in "MDPFEV"]
    assert {case for case in several if case[0] in "MDPFEV"} <= CASES["tests"].keys()
