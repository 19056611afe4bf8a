"""The import table: a package imports only from tiers below its own, and no sibling.

Imports inside functions count, relative ones and `importlib.import_module("...")` too.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "ftrecipes"
TIERS = {
    "config": 0,
    "runtime": 1,
    "data": 2,
    "model": 2,
    "parallel": 2,
    "optim": 2,
    "checkpoint": 3,
    "report": 3,
    "train": 4,
    "finetuning": 5,
    "commands": 5,
}
ROOT_MODULES = {"", "__main__"}  # the version, and `python -m ftrecipes`
STORY = {("commands", "finetuning")}  # the command runs the story


def imported_names(source: str, module: str, *, is_package: bool = False) -> Iterator[str]:
    """Absolute dotted names of everything `source` (the text of `module`) imports, anywhere."""
    parts = module.split(".")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = node.level - is_package
            base = parts[: len(parts) - up] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{start}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and _called(node) == "import_module":
            name = node.args[0]
            if isinstance(name, ast.JoinedStr):
                name = name.values[0]  # what is fixed of an f-string
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                yield name.value


def _called(node: ast.Call) -> str:
    """The last part of the called name; empty when something else is called."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr
    return node.func.id if isinstance(node.func, ast.Name) else ""


def part_of(module: str) -> str:
    """`data` for ftrecipes.data.rows; empty for the package itself."""
    return [*module.split("."), ""][1]


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """Imports of `module` that the table forbids."""
    part = part_of(module)
    found = []
    for name in imported_names(source, module, is_package=is_package):
        other = part_of(name)
        if name.split(".")[0] != "ftrecipes" or other == part or part in ROOT_MODULES:
            continue
        if other not in TIERS:
            # the version alone may be taken from the package itself
            if other not in ("", "__version__"):
                found.append(f"{module} imports {name}, which no tier holds")
        elif TIERS[other] >= TIERS[part] and (part, other) not in STORY:
            found.append(f"{module} (tier {TIERS[part]}) imports {name} (tier {TIERS[other]})")
    return found


def modules() -> list[tuple[str, bool, str]]:
    """(dotted name, whether it is a package, text) of every module of ours."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ["ftrecipes", *path.relative_to(SOURCE).with_suffix("").parts]
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found.append((name, is_package, path.read_text(encoding="utf-8")))
    return found


MODULES = modules()


def test_every_module_was_seen():
    names = {name for name, _, _ in MODULES}
    assert len(names) == len(MODULES) >= 35
    assert {"ftrecipes.config.parse", "ftrecipes.commands", "ftrecipes.finetuning"} <= names
    assert {part_of(name) for name in names} - ROOT_MODULES <= TIERS.keys()


@pytest.mark.parametrize(("name", "is_package", "source"), MODULES, ids=[m[0] for m in MODULES])
def test_imports_point_down(name, is_package, source):
    assert violations(source, name, is_package=is_package) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ftrecipes.data.rows", "def f():\n    from ftrecipes.train.loop import run_loop"),
        ("ftrecipes.data.rows", "import ftrecipes.model.load"),
        ("ftrecipes.data.rows", "from ftrecipes import model"),
        ("ftrecipes.data.rows", "from ..model.load import load_model"),
        ("ftrecipes.data.rows", "def f():\n    from .. import optim"),
        (
            "ftrecipes.config.parse",
            "import importlib\nimportlib.import_module('ftrecipes.runtime')",
        ),
        ("ftrecipes.config.parse", "def f():\n    import_module(f'ftrecipes.data.{name}')"),
        (
            "ftrecipes.checkpoint.full",
            "if TYPE_CHECKING:\n    from ftrecipes.report import metrics",
        ),
        ("ftrecipes.finetuning", "from ftrecipes.commands import finetune"),
        ("ftrecipes.train.loop", "from ftrecipes.utils import helper"),
    ],
)
def test_the_check_goes_red(module, source):
    assert len(violations(source, module)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("ftrecipes.data.rows", "from ftrecipes.config.errors import DataError"),
        ("ftrecipes.data.rows", "from .masks import find\nfrom ftrecipes.data import chat"),
        ("ftrecipes.train.probe", "from ftrecipes.model.load import x\nimport torch.nn"),
        ("ftrecipes.commands.finetune", "def f():\n    from ftrecipes import finetuning"),
        ("ftrecipes.checkpoint.record", "from ftrecipes import __version__"),
        ("ftrecipes.data.rows", "import importlib\nimportlib.import_module('model')"),
    ],
)
def test_the_check_stays_green(module, source):
    assert violations(source, module) == []


def test_relative_imports_of_a_package_are_resolved():
    source = "from . import rows\nfrom ..model import load"
    names = list(imported_names(source, "ftrecipes.data", is_package=True))
    assert names == ["ftrecipes.data.rows", "ftrecipes.model.load"]


def test_config_needs_the_standard_library_and_yaml_only():
    seen = 0
    for name, is_package, source in MODULES:
        if part_of(name) != "config":
            continue
        seen += 1
        tops = {
            found.split(".")[0] for found in imported_names(source, name, is_package=is_package)
        }
        assert tops <= {*sys.stdlib_module_names, "yaml", "ftrecipes"}, name
    assert seen >= 15


def test_nothing_below_the_commands_prints():
    seen = 0
    for name, _, source in MODULES:
        if part_of(name) == "commands":
            continue
        seen += 1
        calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
        assert "print" not in {_called(call) for call in calls}, name
    assert seen >= 30


def devices_by_name(source: str) -> list[str]:
    """Uses of one kind of device: torch.cuda and its like, `is_cuda`, `x.cuda()`."""
    kinds = ("cuda", "mps", "xpu")
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute))
    flags = tuple(f"is_{kind}" for kind in kinds)
    return [ast.unparse(node) for node in nodes if node.attr in (*kinds, *flags)]


def test_only_runtime_and_report_ask_one_kind_of_device():
    """Elsewhere a device is `torch.accelerator`'s or a type in a tensor: MPS and XPU work alike."""
    seen, users = 0, set()
    for name, _, source in MODULES:
        seen += 1
        found = devices_by_name(source)
        users |= {part_of(name)} if found else set()
        assert not found or part_of(name) in ("runtime", "report"), f"{name}: {found}"
    assert seen >= 60
    assert users == {"runtime", "report"}  # or the search finds nothing
    for source in ("torch.cuda.synchronize()", "x.is_cuda", "x.cuda()", "torch.backends.mps.f()"):
        assert len(devices_by_name(source)) == 1


def test_modules_and_functions_stay_small():
    """No more than 250 lines a module and 60 a function, and ASCII only, in tests too."""
    root = SOURCE.parents[1]
    rooms = ("src", "tests", "recipes", "benchmarks", ".ci")
    paths = [path for room in rooms for path in sorted((root / room).rglob("*.py"))]
    assert len(paths) >= 120
    too_much = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        sizes = {path.name: (len(text.splitlines()), 250)}
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                sizes[f"{path.name}: {node.name}"] = (node.end_lineno - node.lineno + 1, 60)
        too_much += [f"{name}: {size} lines" for name, (size, most) in sizes.items() if size > most]
        too_much += [] if text.isascii() else [f"{path.name}: not ASCII"]
    assert too_much == []
