"""Commands as one types them: help, faults, exit codes, what is imported, and documented lines."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ftrecipes.commands import COMMANDS
from ftrecipes.config.errors import ConfigError
from ftrecipes.config.flags import flags_of
from ftrecipes.config.help import CONFIGS, help_text
from ftrecipes.config.parse import parse_words
from ftrecipes.config.schema import RunConfig

ROOT = Path(__file__).parents[1]
RECIPE = "recipes/finetuning.py"
OLD_RECIPE = "recipes/finetuning/finetuning.py"
HEAVY = {
    "torch",
    "numpy",
    "transformers",
    "peft",
    "datasets",
    "bitsandbytes",
    "tqdm",
    "rich",
    "safetensors",
}
IMPORTED = """
import runpy, sys
script, *sys.argv[1:] = sys.argv[1:]
sys.argv[0] = script
try:
    if script == "ftrecipes":
        runpy.run_module(script, run_name="__main__")
    else:
        runpy.run_path(script, run_name="__main__")
except SystemExit as end:
    sys.stderr.write("\\nended " + repr(end.code) + " imported " + " ".join(sys.modules))
"""


def run(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess:
    """A Python process that finds the package under src."""
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "COLUMNS": "80"}
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("script", [RECIPE, OLD_RECIPE])
@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--lr", "fast", "--help"]])
def test_help_prints_every_flag_and_does_nothing_else(script, words):
    done = run(script, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == help_text("finetune")
    for name in flags_of(RunConfig):
        assert f"\n  --{name} " in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command):
    done = run("-m", "ftrecipes", command, "--help")
    assert (done.returncode, done.stdout, done.stderr) == (0, help_text(command), "")


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_the_list_of_commands(words):
    done = run("-m", "ftrecipes", *words)
    assert done.returncode == 0
    assert all(f"  {command} " in done.stdout for command in COMMANDS)


def test_an_unknown_command_is_named_with_the_nearest():
    done = run("-m", "ftrecipes", "finetun", "--lr", "1")
    assert done.returncode == 2
    assert "`finetun`" in done.stderr
    assert "finetune" in done.stderr


@pytest.mark.parametrize("script", [[RECIPE], ["-m", "ftrecipes", "config"]])
def test_three_faults_at_once(script):
    done = run(*script, "--lora.rank", "4", "--nonsense", "1", "--lr", "fast")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--lora.rank: no such flag\n  got: 4\n  do: did you mean --lora.r?" in done.stderr
    assert "--nonsense: no such flag\n  got: 1\n  do: --help lists all" in done.stderr
    assert "--lr: bad value\n  got: fast\n  expected: a number" in done.stderr
    assert "--model_name, --dataset, --output_dir: required" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--seed", "3", "--seed", "4"], "--seed: given twice"),
        (["--lr", "-"], "-: dashes alone are no flag"),
        (["--lr", "1", "--", "--lr", "2"], "--: dashes alone are no flag"),
        (["stray"], "stray: belongs to no flag"),
        (["--lora.target_modules", "[q_proj,", "v_proj]"], "the value has spaces"),
        (["--noeval"], "--noeval: no value follows"),
        (["--config", "none.yaml"], "--config none.yaml: can not be used"),
        (["--dataset", "./none.jsonl"], "--dataset ./none.jsonl: does not exist"),
    ],
)
def test_faults_end_before_anything_runs(words, expected, tmp_path):
    done = run(str(ROOT / RECIPE), *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([RECIPE, "--help"], 0),
        ([RECIPE, "--lr", "fast"], 2),
        ([RECIPE, "stray"], 2),
        ([RECIPE, "--config", "recipes/quickstart.yaml"], 2),
        (["ftrecipes", "config", "--lr", "fast"], 2),
        (["ftrecipes", "config", "--model_name", "m", "--dataset", "d", "--output_dir", "none"], 0),
        (["ftrecipes", "preview", "--help"], 0),
        (["ftrecipes", "preview", "--rows", "many"], 2),
        (["ftrecipes", "generate", "--help"], 0),
        (["ftrecipes", "generate", "--nonsense"], 2),
        (["ftrecipes", "--version"], 0),
    ],
)
def test_nothing_heavy_is_imported_before_the_settings_are_right(words, code):
    done = run("-c", IMPORTED, *words)
    ended, imported = re.search(r"\nended (\d+) imported (.+)$", done.stderr).groups()
    assert int(ended) == code
    assert "ftrecipes.config.parse" in imported or words[-1] == "--version"
    assert HEAVY.isdisjoint(imported.split())


def test_config_prints_settings_that_can_be_read_again(tmp_path):
    words = ["--model_name", "o/m", "--dataset", "o/d", "--output_dir", "out", "--one_gpu"]
    done = run("-m", "ftrecipes", "config", *words, "--lr", "1e-5", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr == "warning: --one_gpu is ignored: it had no effect\n"
    assert re.search(r"^lr: 1.0e-05 +# --lr$", done.stdout, re.MULTILINE)
    assert yaml.safe_load(done.stdout)["lora"]["r"] == 16
    (tmp_path / "run.yaml").write_text(done.stdout)
    again = run("-m", "ftrecipes", "config", "--config", "run.yaml", cwd=tmp_path)
    assert yaml.safe_load(again.stdout) == yaml.safe_load(done.stdout)
    assert re.search(r"^lr: 1.0e-05 +# run.yaml$", again.stdout, re.MULTILINE)


def test_shell_scripts_parse():
    scripts = [*ROOT.glob("*.sh"), *(ROOT / "recipes").rglob("*.sh"), ROOT / ".ci" / "run"]
    assert len(scripts) >= 4
    for script in scripts:
        done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


# --- lines of README, docs and recipes


OURS = re.compile(
    r"\bftrecipes [a-z]|\brecipes/((finetuning/)?finetuning\.py|multi_node/(slurm|ssh)\.sh)"
)
NEEDED = ["--model_name", "owner/model", "--dataset", "owner/data", "--output_dir", "out"]
# Between ``` fences, or indented by four blanks.
BLOCK = re.compile(r"(?:^```\w*\n(?:.*\n)*?^```|(?:^ {4}.*\n)+)", re.MULTILINE)


def documented() -> Iterator[tuple[str, str]]:
    """(file, command line) of each of our commands in a code block or a shell script."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    blocks = [
        (page, block) for page in pages for block in BLOCK.findall(page.read_text(encoding="utf-8"))
    ]
    scripts = [*sorted(ROOT.glob("*.sh")), *sorted((ROOT / "recipes").rglob("*.sh"))]
    # What stands further in than a comment's words is a command to copy.
    blocks += [
        (script, re.sub(r"^#   ", "", script.read_text(encoding="utf-8"), flags=re.MULTILINE))
        for script in scripts
    ]
    for path, block in blocks:
        for line in block.replace("\\\n", " ").splitlines():
            if OURS.search(line):
                yield str(path.relative_to(ROOT)), line.strip()


def own_words(line: str) -> tuple[type, list[str]] | None:
    """The configuration class and flags of a command line; None for a comment."""
    words = shlex.split(line, comments=True)
    for position, word in enumerate(words):
        rest = words[position + 1 :]
        if word.endswith("multi_node/ssh.sh"):  # its own options end with --
            return RunConfig, ["--enable_fsdp", *rest[rest.index("--") + 1 :]]
        if word.endswith("multi_node/slurm.sh"):
            return RunConfig, ["--enable_fsdp", *rest]
        if word.endswith("finetuning.py"):  # a script hands the flags of a run on
            return RunConfig, [*rest[:-1], *NEEDED] if rest[-1:] == ["$@"] else rest
        if word.endswith("ftrecipes") and words[position + 1 :]:
            command = words[position + 1]
            assert command in COMMANDS, line
            return CONFIGS[command], words[position + 2 :]
    return None


def faults_of(words: list[str], config_class: type) -> list[str]:
    try:
        parse_words(words, into=config_class)
    except ConfigError as error:
        return error.faults
    return []


DOCUMENTED = [(path, line) for path, line in documented() if own_words(line)]


def test_documented_commands_were_seen():
    assert len(DOCUMENTED) >= 20
    seen = [path for path, _ in DOCUMENTED]
    assert {"quickstart.sh", "README.md", "docs/multinode.md"} <= set(seen)
    assert [seen.count(f"recipes/multi_node/{name}.sh") for name in ("slurm", "ssh")] == [2, 2]


@pytest.mark.parametrize(("path", "line"), DOCUMENTED)
def test_documented_commands_are_right(path, line, tmp_path, monkeypatch):
    """Every fault but that of a file which is only an example."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(tmp_path)
    config_class, words = own_words(line)
    if "--help" in words:
        return
    faults = faults_of(words, config_class)
    absent = (": does not exist", ": matches no data file")
    assert [fault for fault in faults if not any(word in fault for word in absent)] == []
