"""Flags of activation checkpointing: names, words, faults, and run.yaml."""

import json
from pathlib import Path

import pytest
import yaml

from ftrecipes.config.parse import parse, parse_words, to_mapping
from ftrecipes.config.recomputing import is_asked, method_in
from ftrecipes.config.schema import RunConfig
from ftrecipes.config.sections import ActivationCheckpointingConfig as Section
from tests.config.faults import faults_of

AC = "--activation_checkpointing"
GC = "--gradient_checkpointing"
MIXED = '{"attention": "first-2, last-1", "mlp": [1, -1], "norm": 2, "model.layers.0": ["all"]}'


def parsed(needed: list[str], *words: str) -> RunConfig:
    return parse_words([*needed, *words]).config


def section(needed: list[str], *words: str) -> Section:
    return parsed(needed, *words).activation_checkpointing


def faults(needed: list[str], words: str) -> list[str]:
    return faults_of(lambda: parsed(needed, *words.split()))


# --- targets, however they come
@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("attention", {"attention": "all"}),
        ("attention,mlp", {"attention": "all", "mlp": "all"}),
        ("[attention, mlp]", {"attention": "all", "mlp": "all"}),
        ('["attention", "mlp"]', {"attention": "all", "mlp": "all"}),
        ("[]", {"block": "all"}),
        ("{}", {}),
        ("model.layers.*.mlp", {"model.layers.*.mlp": "all"}),
        (MIXED, json.loads(MIXED)),
        ("none", None),
        ("NULL", None),
    ],
)
def test_a_target_reads_back_from_run_yaml(text, target, needed):
    """As a flag, as text or as YAML in a file, from Python, and as it is recorded."""
    config = parsed(needed, f"{AC}.target", text)
    assert config.activation_checkpointing == Section(target=target)
    for value in (text, yaml.safe_load(text)):
        Path("own.yaml").write_text(yaml.safe_dump({"activation_checkpointing": {"target": value}}))
        assert parsed(needed, "--config", "own.yaml") == config
    flags = dict(zip((word.lstrip("-") for word in needed[::2]), needed[1::2], strict=True))
    assert parse({**flags, "activation_checkpointing.target": target}).config == config
    Path("run.yaml").write_text(yaml.safe_dump(to_mapping(config)))
    assert parse_words(["--config", "run.yaml"]).config == config


def test_a_number_in_a_file_is_a_number_and_a_text_a_text(needed):
    """YAML files are read as text; how many blocks, and which, is told by the quotes."""
    Path("own.yaml").write_text("activation_checkpointing: {target: {mlp: 2, norm: [-1, '0']}}")
    target = section(needed, "--config", "own.yaml").target
    assert target == {"mlp": 2, "norm": [-1, "0"]}
    assert [type(value) for value in (target["mlp"], *target["norm"])] == [int, int, str]
    Path("own.yaml").write_text("activation_checkpointing: {target: {mlp: '2'}}")
    (fault,) = faults(needed, "--config own.yaml")
    assert 'mlp: "2" could be a number or a count' in fault
    for odd in ("1.5", "0x2", "2024-01-01", "true", "", "{all: 1}"):
        Path("own.yaml").write_text(f"activation_checkpointing: {{target: {{mlp: {odd}}}}}")
        (fault,) = faults(needed, "--config own.yaml")
        assert "do: mlp: " in fault


@pytest.mark.parametrize(
    "words",
    [
        f"{AC} selective {AC}.save_ops=aten.gelu,-aten.mm {AC}.count_ops",
        f"{AC}.every_n 2 {AC}.offload",
        f"{AC} none",
        f"{AC} full {AC}.count_ops true",
        GC,
        f"--enable_fsdp {AC}.target attention",
    ],
)
def test_other_settings_read_back_from_run_yaml(words, needed):
    config = parsed(needed, *words.split())
    Path("run.yaml").write_text(yaml.safe_dump(to_mapping(config)))
    again = parse_words(["--config", "run.yaml"]).config
    assert (again, method_in(again)) == (config, method_in(config))


def test_a_target_of_a_file_gives_way_to_a_flag(needed):
    Path("run.yaml").write_text("activation_checkpointing: {target: {mlp: first-2}, every_n: 0}\n")
    words = ["--config", "run.yaml"]
    assert section(needed, *words).target == {"mlp": "first-2"}
    assert section(needed, *words, f"{AC}.target", "norm").target == {"norm": "all"}
    assert section(needed, *words, f"{AC}.target", "none").target is None


# --- what it comes to
@pytest.mark.parametrize(
    ("words", "alone", "with_fsdp", "asked"),
    [
        ("", "none", "full", False),
        (f"{AC} auto", "none", "full", False),
        (f"{AC} none", "none", "none", False),
        (AC, "full", "full", True),
        (f"{AC} selective", "selective", "selective", True),
        (f"{AC}.target attention", "full", "full", True),
        (f"{AC}.target {{}}", "full", "full", True),
        (f"{AC} selective {AC}.target attention", "selective", "selective", True),
        (f"{AC}.every_n 2", "full", "full", True),
        (f"{AC}.every_n 0", "none", "full", False),
        (f"{AC}.offload", "full", "full", True),
        (f"{AC}.offload false", "none", "full", False),
        (GC, "full", "full", True),
        (f"{GC} false", "none", "full", False),
        (f"{GC} false {AC} full", "full", "full", True),
    ],
)
def test_the_method(words, alone, with_fsdp, asked, needed):
    for switch, expected in ((), alone), (("--enable_fsdp",), with_fsdp):
        config = parsed(needed, *switch, *words.split())
        assert (method_in(config), is_asked(config)) == (expected, asked)


# --- names of others
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--fsdp_activation_checkpointing", Section("full")),
        ("--fsdp.activation_checkpointing true", Section("full")),
        ("--fsdp.activation_checkpointing selective", Section("selective")),
        ("--fsdp.fsdp_activation_checkpointing False", Section("none")),
        ("--fsdp_config.fsdp_activation_checkpointing no", Section("none")),
        ("--fsdp_config.activation_checkpointing on", Section("full")),
        ("--activation_checkpointing_target attention", Section(target={"attention": "all"})),
        ("--fsdp.activation_checkpointing_target {}", Section(target={})),
        ('--activation_checkpointing_target {"mptblock":[1]}', Section(target={"mptblock": [1]})),
        ("--activation_checkpointing_target None", Section()),
        ("--activation_cpu_offload", Section(offload=True)),
        ("--fsdp.activation_cpu_offload true", Section(offload=True)),
        ("--fsdp_config.activation_checkpointing_offload 1", Section(offload=True)),
        ("--activation_checkpointing_reentrant false", Section()),
        ("--fsdp.activation_checkpointing_reentrant no", Section()),
    ],
)
def test_names_of_others(words, expected, needed):
    run = parse_words([*needed, *words.split()])
    assert (run.config.activation_checkpointing, run.warnings) == (expected, ())


@pytest.mark.parametrize("prefix", ["", "fsdp.", "fsdp_config."])
def test_the_reentrant_kind_is_refused_with_the_reason(prefix, needed):
    (fault,) = faults(needed, f"--{prefix}activation_checkpointing_reentrant")
    assert fault.startswith(f"--{prefix}activation_checkpointing_reentrant: refused: only the non")


@pytest.mark.parametrize("prefix", ["", "fsdp_"])
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"activation_checkpointing": True}, Section("full")),
        ({"activation_checkpointing": "selective"}, Section("selective")),
        ({"activation_checkpointing_offload": True}, Section(offload=True)),
        ({"activation_cpu_offload": "true"}, Section(offload=True)),
        ({"activation_checkpointing_offload": False}, Section()),
        ({"activation_checkpointing_reentrant": False}, Section()),
        ({"activation_checkpointing_target": ["A", "B"]}, Section(target={"A": "all", "B": "all"})),
        ({"activation_checkpointing_target": {"A": "last-1"}}, Section(target={"A": "last-1"})),
        ({"activation_checkpointing_target": None}, Section()),
    ],
)
def test_files_of_fsdp(prefix, settings, expected, needed):
    Path("f.json").write_text(json.dumps({prefix + key: value for key, value in settings.items()}))
    run = parse_words([*needed, "--enable_fsdp", "--fsdp_config", "f.json"])
    assert (run.config.activation_checkpointing, run.warnings) == (expected, ())


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("activation_checkpointing.targets", "activation_checkpointing.target"),
        ("activation_checkpointing.tagret", "activation_checkpointing.target"),
        ("activation_checkpointing.every", "activation_checkpointing.every_n"),
        ("activation_checkpointing.every_n_layers", "activation_checkpointing.every_n"),
        ("activation_checkpointing.cpu_offload", "activation_checkpointing.offload"),
        ("activation_checkpointing.ofload", "activation_checkpointing.offload"),
        ("activation_checkpointing.save_op", "activation_checkpointing.save_ops"),
        ("activation_checkpointing.countops", "activation_checkpointing.count_ops"),
        ("activation_checkpointing.methods", "activation_checkpointing.method"),
        ("activation_checkpoint", "activation_checkpointing"),
        ("activation_checkpoint.selective_ac_option", "activation_checkpointing selective"),
        ("activation_checkpointng", "activation_checkpointing"),
        ("gradient_checkpoint", "activation_checkpointing full"),
        ("gradient_checkpointng", "gradient_checkpointing"),
        ("disable_gradient_checkpointing", "activation_checkpointing none"),
        ("every_n_layers", "activation_checkpointing.every_n"),
        ("activation_offloading", "activation_checkpointing.offload"),
        ("recompute_modules", "activation_checkpointing.target"),
    ],
)
def test_a_slip_or_another_tools_word_finds_its_flag(name, meant, needed):
    (fault,) = faults(needed, f"--{name} 1")
    assert fault.startswith(f"--{name}: no such flag")
    assert f"did you mean --{meant}?" in fault
