"""`--fsdp_config FILE.json`: the spelling of transformers and accelerate."""

import json
from pathlib import Path

import pytest
from transformers import TrainingArguments

from ftrecipes.config.fsdp_file import FLAGS, IGNORED, REFUSED
from ftrecipes.config.parse import Parsed, parse, parse_words
from ftrecipes.config.sections import FsdpConfig
from tests.config.faults import faults_of

FILE = "fsdp.json"


def read(needed: list[str], content: object, words: str = "") -> Parsed:
    """The settings of a run with this file, and `words` beside it."""
    Path(FILE).write_text(content if isinstance(content, str) else json.dumps(content))
    return parse_words([*needed, "--enable_fsdp", "--fsdp_config", FILE, *words.split()])


@pytest.mark.parametrize("prefix", ["", "fsdp_"])
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"transformer_layer_cls_to_wrap": "LlamaDecoderLayer"}, ["LlamaDecoderLayer"]),
        ({"transformer_layer_cls_to_wrap": ["A", "B"]}, ["A", "B"]),
        ({"transformer_cls_names_to_wrap": "A,B"}, ["A", "B"]),
        ({"transformer_layer_cls_to_wrap": None}, []),
    ],
)
def test_classes(prefix, settings, expected, needed):
    settings = {prefix + key: value for key, value in settings.items()}
    assert read(needed, settings).config.fsdp.wrap_classes == expected


@pytest.mark.parametrize("key", ["reshard_after_forward", "fsdp_sharding_strategy"])
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, "FULL_SHARD"),
        ("True", "FULL_SHARD"),
        (False, "SHARD_GRAD_OP"),
        ("false", "SHARD_GRAD_OP"),
        (1, "FULL_SHARD"),
        ("2", "SHARD_GRAD_OP"),
        (3, "NO_SHARD"),
        (4, "HYBRID_SHARD"),
        ("full_shard", "FULL_SHARD"),
        ("SHARD_GRAD_OP", "SHARD_GRAD_OP"),
        ("hybrid_shard", "HYBRID_SHARD"),
    ],
)
def test_strategies_of_both_generations(key, value, expected, needed):
    assert read(needed, {key: value}).config.fsdp.sharding_strategy == expected


@pytest.mark.parametrize("value", [True, "True", "true", False, "False", "no"])
def test_switches_are_texts_or_real(value, needed):
    names = ("activation_checkpointing", "offload_params", "fsdp_cpu_ram_efficient_loading")
    parsed = read(needed, dict.fromkeys(names, value))
    config, on = parsed.config, str(value).lower() == "true"
    assert config.activation_checkpointing.method == ("full" if on else "none")
    assert (config.fsdp.cpu_offload, config.train.low_cpu_fsdp) == (on, on)
    assert parsed.warnings == ()
    assert config.origins["fsdp.cpu_offload"] == FILE
    assert config.origins["fsdp_config"] == "--fsdp_config"


def test_what_accelerate_writes_by_default_is_read_with_one_warning(needed):
    parsed = read(
        needed,
        {
            "fsdp_activation_checkpointing": True,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_backward_prefetch": "BACKWARD_PRE",
            "fsdp_cpu_ram_efficient_loading": True,
            "fsdp_forward_prefetch": False,
            "fsdp_min_num_params": 0,
            "fsdp_offload_params": False,
            "fsdp_reshard_after_forward": True,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            "fsdp_sync_module_states": True,
            "fsdp_version": 2,
            "xla": False,
        },
    )
    assert parsed.config.fsdp == FsdpConfig()
    (warning,) = parsed.warnings
    assert warning == (
        "fsdp.json: ignored: fsdp_backward_prefetch, fsdp_sync_module_states (FSDP2 has no such "
        "switch); fsdp_state_dict_type (weights are saved as safetensors in the Hugging Face "
        "layout)"
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"version": 1}, "fsdp.json: version: refused: sharding is that of FSDP2\n  got: 1\n"),
        ({"fsdp_version": "1"}, "do: write 2, or leave it out"),
        ({"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 0}, "a decoder block"),
        ({"auto_wrap_policy": "NO_WRAP"}, "name the classes in transformer_layer_cls_to_wrap"),
        ({"xla": "true"}, "XLA devices are not trained on"),
        ({"xla_fsdp_v2": True}, "XLA devices are not trained on"),
        ({"activation_checkpointing_reentrant": True}, "only the non-reentrant kind is used"),
        ({"mixed_precision_policy": "bf16"}, "--pure_bf16 and --use_fp16"),
        ({"ignored_modules": "lm_head"}, "every module is sharded"),
        ({"reshard_after_forward": "hybrid_shard_zero2"}, "did you mean HYBRID_SHARD?"),
        ({"sharding_strategy": 5}, "got: HYBRID_SHARD_ZERO2"),
        ({"reshard_after_forward": [1]}, "expected: one of FULL_SHARD, "),
        ({"cpu_offload": "maybe"}, "fsdp.json: cpu_offload: bad value\n  got: maybe"),
        ({"offload_params": {"x": 1}}, "expected: true or false"),
        ({"activation_checkpointing": 3}, "expected: one of full, selective, none, auto"),
        ({"transformer_layer_cls_to_wrap": [1]}, "fsdp.json: transformer_layer_cls_to_wrap: bad"),
        ({"transformer_layer_cls_to_wrap": "a.B"}, "no names of classes (see fsdp.json)"),
        ({"transformer_layer_cls_to_warp": "B"}, "did you mean transformer_layer_cls_to_wrap?"),
        ({"nonsense": 1}, "no such setting of transformers' fsdp_config\n  got: 1\n  do: take it"),
        ({"wrap_classes": "A"}, "do: take it out, and say --fsdp.wrap_classes"),
        ({"cpu_offload": True, "fsdp_cpu_offload": False}, "contradicts fsdp.json, which says"),
        ("[1]", "got: no JSON object, but list"),
        ("{", "--fsdp_config fsdp.json: can not be used"),
        ("[" * 30000, "--fsdp_config fsdp.json: can not be used"),
        ("fsdp_version: 2\n", "expected: a JSON file of what transformers calls fsdp_config"),
        ('{"version": 2, "version": 1}', "version is given twice"),
        ({"fsdp_config": {"version": 2}}, "keep what is under its fsdp_config"),
    ],
)
def test_faults_name_the_file(settings, expected, needed):
    (fault,) = faults_of(lambda: read(needed, settings))
    assert expected in fault


def test_all_faults_of_a_file_come_together(needed):
    settings = {"version": 1, "xla": True, "cpu_offload": "x", "nonsense": 1}
    faults = faults_of(lambda: read(needed, settings, "--lr fast"))
    assert len(faults) == 5


@pytest.mark.parametrize(("path", "expected"), [("none.json", "No such file"), (".", "directory")])
def test_a_file_that_is_not_there_is_the_only_fault(path, expected, needed):
    (fault,) = faults_of(lambda: parse_words([*needed, "--enable_fsdp", "--fsdp_config", path]))
    assert fault.startswith(f"--fsdp_config {path}: can not be used")
    assert expected in fault


def test_a_bare_flag_is_no_file(needed):
    (fault,) = faults_of(lambda: parse_words([*needed, "--enable_fsdp", "--fsdp_config"]))
    assert fault.startswith("--fsdp_config: bad value\n  got: True\n  expected: the path of")


def test_flags_win_over_the_file_which_wins_over_run_yaml(needed):
    Path("run.yaml").write_text("fsdp: {cpu_offload: true, sharding_strategy: NO_SHARD}\n")
    settings = {"reshard_after_forward": False, "activation_checkpointing": True}
    words = "--config run.yaml --activation_checkpointing none"
    config = read(needed, settings, words).config
    assert config.fsdp == FsdpConfig("SHARD_GRAD_OP", cpu_offload=True)
    assert config.activation_checkpointing.method == "none"


def test_run_yaml_may_name_the_file_and_win_over_it(needed):
    Path(FILE).write_text('{"cpu_offload": true, "reshard_after_forward": true}')
    Path("other.json").write_text('{"reshard_after_forward": "no_shard"}')
    Path("run.yaml").write_text(
        f"enable_fsdp: true\nfsdp_config: {FILE}\nfsdp: {{sharding_strategy: SHARD_GRAD_OP}}\n"
    )
    words = [*needed, "--config", "run.yaml"]
    config = parse_words(words).config
    assert config.fsdp == FsdpConfig("SHARD_GRAD_OP", cpu_offload=True)
    assert config.origins["fsdp.cpu_offload"] == FILE
    # As with every flag, the one that is typed takes the place of the one in run.yaml.
    assert parse_words([*words, "--fsdp_config", "other.json"]).config.fsdp == FsdpConfig(
        "NO_SHARD"
    )
    assert parse_words([*words, "--fsdp_config", "none"]).config.fsdp.cpu_offload is False
    off = ["--fsdp_config", "none", "--enable_fsdp", "no", "--fsdp.sharding_strategy", "FULL_SHARD"]
    (fault,) = faults_of(lambda: parse_words([*words, *off]))
    assert fault.startswith("--fsdp.sharding_strategy: would have no effect")


def test_the_section_may_still_be_a_mapping(needed):
    Path("run.yaml").write_text("enable_fsdp: true\nfsdp_config: {hsdp: true, fsdp_cpu_offload: 1}")
    fsdp = parse_words([*needed, "--config", "run.yaml"]).config.fsdp
    assert fsdp == FsdpConfig("HYBRID_SHARD", cpu_offload=True)


def test_a_file_without_fsdp_has_no_effect(needed):
    Path(FILE).write_text('{"cpu_offload": true}')
    (fault,) = faults_of(lambda: parse_words([*needed, "--fsdp_config", FILE]))
    assert fault == (
        "--fsdp_config, --fsdp.cpu_offload: would have no effect: without --enable_fsdp one "
        "process trains (see fsdp.json)"
    )


def test_python_callers_may_name_a_path(needed):
    Path(FILE).write_text('{"cpu_offload": true}')
    flags = {"model_name": "o/m", "dataset": "train.jsonl", "output_dir": "out"}
    flags |= {"enable_fsdp": True, "fsdp_config": Path(FILE)}
    assert parse(flags).config.fsdp.cpu_offload


def test_every_key_that_transformers_documents_is_known():
    documented = TrainingArguments.__doc__.partition("Supported keys:")[2].partition("> Deep")[0]
    keys = [
        line.strip().split()[1]
        for line in documented.splitlines()
        if line.strip().startswith("- ") and "(`" in line
    ]
    assert len(keys) >= 12
    assert set(keys) <= {*FLAGS, *IGNORED, *REFUSED}


def test_every_field_of_accelerates_plugin_is_known():
    plugin = pytest.importorskip("accelerate.utils").FullyShardedDataParallelPlugin
    fields = {name.removeprefix("fsdp_") for name in plugin.__dataclass_fields__}
    # param_init_fn is a function, which no JSON file holds
    assert fields - {"param_init_fn"} <= {*FLAGS, *IGNORED, *REFUSED}
