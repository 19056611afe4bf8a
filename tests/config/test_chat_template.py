"""--data.chat_template: a name that is known, or a file that is there."""

import re
from pathlib import Path

import pytest

from ftrecipes.config import argv
from ftrecipes.config.parse import parse
from tests.config.faults import faults_of


def parsed(needed, words: str):
    return parse(argv.split(needed, ()).flags | argv.split(words.split(), ()).flags)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("chatlm", r"no template of this name.*chatml, gemma, llama3.*\.jinja.*you mean chatml\?"),
        ("mine", "no template of this name"),
        ("gone.jinja", "--data.chat_template gone.jinja: does not exist"),
        ("folder.jinja", "not a file"),
    ],
)
def test_faults(needed, value, expected):
    Path("folder.jinja").mkdir()
    (fault,) = faults_of(lambda: parsed(needed, f"--data.chat_template {value}"))
    assert re.search(expected, fault.replace("\n", " "))


def test_what_is_allowed(needed):
    Path("mine.jinja").touch()
    for value in ("chatml", "mine.jinja", "none"):
        assert parsed(needed, f"--data.chat_template {value}").warnings == ()


def test_a_run_does_not_replace_the_template_that_it_reads(needed):
    Path("out").mkdir()
    Path("out/chat_template.jinja").write_text("{{ messages }}")
    words = "--data.chat_template out/chat_template.jinja --output_dir out --overwrite_output_dir"
    (fault,) = faults_of(lambda: parsed(needed, words))
    assert "would replace out/chat_template.jinja, which is --data.chat_template" in fault


def test_what_other_tools_call_it(needed):
    (fault,) = faults_of(lambda: parsed(needed, "--chat_template_path a.jinja"))
    assert "--data.chat_template" in fault
