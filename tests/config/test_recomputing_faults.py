"""What can not be asked of activation checkpointing: one fault each, told with all others."""

import json
from pathlib import Path

import pytest

from ftrecipes.config.parse import check_argv, parse_words
from tests.config.faults import faults_of

AC = "--activation_checkpointing"
GC = "--gradient_checkpointing"
PREFIX = "--use_peft --peft_method prefix --batching_strategy padding"


def faults(needed: list[str], words: str) -> list[str]:
    return faults_of(lambda: parse_words([*needed, *words.split()]))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (f"{AC} 3", f"{AC}: bad value\n  got: 3\n  expected: one of full, selective, none, auto,"),
        (f"{AC} attention", f"do: did you mean {AC}.target attention?"),
        (f"{AC} offload", f"do: did you mean {AC}.offload?"),
        (f"{AC} op", "do: did you mean selective?"),
        (f"{AC}.target", "got: True\n  expected: block, attention, mlp, norm, class names or"),
        (f"{AC}.target 5", 'do: 5 is a place: say of what, {"block": [5]}'),
        (f"{AC}.target a,a", "do: a is given twice: keep one"),
        (f'{AC}.target {{"mlp":"range-3"}}', "do: mlp: range-3 has no end: range-3-4 is block 3"),
        (f'{AC}.target {{"mlp":true}}', "do: mlp: true is no place"),
        (f"{AC}.every_n -1", f"{AC}.every_n: out of range\n  got: -1\n  expected: 0 or more"),
        (f"{AC}.every_n 1.5", f"{AC}.every_n: bad value"),
        # what would have no effect
        (f"{AC} none {AC}.target mlp", f"{AC}.target: would have no effect: {AC} none turns it"),
        (f"{AC} none {AC}.target {{}}", f"{AC}.target: would have no effect: {AC} none turns it"),
        (f"{AC} none {AC}.every_n 2", f"{AC}.every_n: would have no effect"),
        (f"--enable_fsdp {AC} no {AC}.offload", f"{AC}.offload: would have no effect"),
        (f"{AC} none {AC}.save_ops aten.mm", f"{AC}.save_ops: would have no effect"),
        (f"{AC} none {AC}.count_ops", f"{AC}.count_ops: would have no effect"),
        (
            f"--fsdp_activation_checkpointing false {AC}.target mlp",
            f"{AC}.target: would have no effect: --fsdp_activation_checkpointing turns it off",
        ),
        (f"{AC}.count_ops", f"no effect: nothing is computed again without {AC}"),
        (f"{AC} auto {AC}.save_ops aten.mm", f"no effect: nothing is computed again without {AC}"),
        (f"{AC} full {AC}.save_ops aten.mm", f"{AC}.save_ops: would have no effect: it needs {AC}"),
        (f"--enable_fsdp {AC}.save_ops aten.mm", f"it needs {AC} selective"),
        (f"{AC}.every_n 2 {AC}.save_ops aten.mm", f"it needs {AC} selective"),
        # two answers to one question
        (
            f"{AC}.target mlp {AC}.every_n 2",
            f"{AC}.target and {AC}.every_n: both say what is checkpointed\n  do: keep one",
        ),
        (
            f"--activation_checkpointing_target mlp {AC}.every_n 2",
            f"--activation_checkpointing_target and {AC}.every_n: both say",
        ),
        (f"{AC} selective {AC}.target mlp {AC}.every_n 2", "both say what is checkpointed"),
        (f"{AC} full --fsdp.activation_checkpointing false", f"contradicts {AC}, which says full"),
        # operators
        (f"{AC} selective {AC}.save_ops mm", f"{AC}.save_ops: no names of operators\n  got: mm\n"),
        (f"{AC} selective {AC}.save_ops aten.mm,torch.ops.aten.mm.default", "got: torch.ops.aten."),
        (f"{AC} selective {AC}.save_ops=--aten.mm", "got: --aten.mm\n  expected: names such as"),
        (f"{AC} selective {AC}.save_ops", f"{AC}.save_ops: bad value\n  got: True"),
        (
            f"{AC} selective {AC}.save_ops aten.mm.default,-aten::mm",
            f"{AC}.save_ops: with and without a minus\n  got: aten.mm",
        ),
        # transformers' flag
        (f"{GC} offload", f"{GC}: bad value\n  got: offload\n  expected: one of true, false"),
        (f"{GC} unsloth", f"do: did you mean {AC}.offload?"),
        # prefix tuning
        (f"{PREFIX} {AC}", f"{AC} full does not work with --peft_method prefix"),
        (f"{PREFIX} {AC} selective", f"{AC} selective does not work with --peft_method prefix"),
        (f"{PREFIX} {AC}.target attention", f"{AC}.target does not work with --peft_method prefix"),
        (f"{PREFIX} {AC}.every_n 2", f"{AC}.every_n does not work with --peft_method prefix"),
        (f"{PREFIX} {AC}.offload", f"{AC}.offload does not work with --peft_method prefix"),
        (f"{PREFIX} {GC}", f"{GC} does not work with --peft_method prefix"),
    ],
)
def test_one_fault_for_one_mistake(words, expected, needed):
    (fault,) = faults(needed, words)
    assert expected in fault


@pytest.mark.parametrize(
    "words",
    [
        f"{AC} none {AC}.target none {AC}.every_n 0 {AC}.offload false {AC}.count_ops no",
        f"{AC} selective {AC}.save_ops aten.mm,aten::gelu,aten.mm.default,-bitsandbytes::gemm_4bit",
        f"{AC} full {AC}.count_ops {AC}.offload",
        f"--enable_fsdp {AC}.count_ops",
        f"{GC} {AC} auto {AC}.offload false",
        f"{GC} --enable_fsdp",
        f"{PREFIX} {AC} none",
    ],
)
def test_what_works(words, needed):
    assert parse_words([*needed, *words.split()]).warnings == ()


# --- two kinds at once
@pytest.mark.parametrize(
    ("words", "ours"),
    [
        (f"{AC} full", f"{AC} full"),
        (AC, f"{AC} full"),
        (f"{AC} selective", f"{AC} selective"),
        (f"{AC}.method full", f"{AC} full"),
        ("--fsdp_activation_checkpointing", "--fsdp_activation_checkpointing"),
        ("--fsdp.activation_checkpointing true", "--fsdp.activation_checkpointing"),
        (f"{AC}.target attention", f"{AC}.target"),
        ("--activation_checkpointing_target attention", "--activation_checkpointing_target"),
        (f"{AC}.every_n 2", f"{AC}.every_n"),
        (f"{AC}.offload", f"{AC}.offload"),
        (f"{AC}.count_ops", f"{AC}.count_ops"),
        (f"{AC}.save_ops aten.mm", f"{AC}.save_ops"),
    ],
)
def test_both_kinds_can_not_be_on(words, ours, needed):
    for switch in ("", "--enable_fsdp "):
        (fault,) = faults(needed, f"{switch}{words} {GC}")
        assert fault == (
            f"{ours} and {GC} can not both be on: every block would be computed more than twice\n"
            f"  do: leave {GC} out: {AC} works alone and with --enable_fsdp"
        )


def test_one_kind_off_and_the_other_on(needed):
    (fault,) = faults(needed, f"{AC} none {GC} true")
    assert fault.startswith(f"{GC} asks for what {AC} none turns off\n  do: keep one of the two")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (f"--config run.yaml {AC}.target mlp", f"{AC}.target and {GC}"),
        ("--config run.yaml --fsdp_config f.json", f"{AC} full and {GC}"),
        (f"--config run.yaml {AC} full", f"{AC} full and {GC}"),
    ],
)
def test_kinds_that_come_from_files(words, names, needed):
    Path("run.yaml").write_text("gradient_checkpointing: true\nenable_fsdp: true\n")
    Path("f.json").write_text(json.dumps({"fsdp_activation_checkpointing": True}))
    (fault,) = faults(needed, words)
    files = "f.json, run.yaml" if "f.json" in words else "run.yaml"
    first = f"{names} can not both be on: every block would be computed more than twice"
    assert fault.splitlines()[0] == f"{first} (see {files})"
    off = parse_words([*needed, *words.split(), GC, "false"]).config
    assert not off.train.gradient_checkpointing


# --- how they are told
def test_all_faults_come_together(needed):
    words = f"--lr fast {AC}.every_n -2 {AC}.save_ops mm {GC} maybe --nonsense 1 --lora.r 4"
    found = [fault.split("\n")[0] for fault in faults(needed, words)]
    assert found == [
        "--lr: bad value",
        f"{GC}: bad value",
        "--nonsense: no such flag",
        f"{AC}.every_n: out of range",
        "--lora.r: would have no effect: without --use_peft every weight is trained",
        f"{AC}.save_ops: would have no effect: it needs {AC} selective",
        f"{AC}.save_ops: no names of operators",
    ]


def test_a_broken_flag_is_not_complained_about_twice(needed):
    for words in (f"{AC} 3 {AC}.count_ops", f"{AC}.target 5 {AC}.every_n 2 {GC}"):
        (fault, *rest) = faults(needed, words)
        assert "bad value" in fault
        assert all("target" not in other for other in rest)


@pytest.mark.parametrize("name", [f"{AC}.save_ops", "--activation-checkpointing.save-ops"])
def test_a_minus_needs_an_equals_sign(name, needed):
    (fault,) = check_argv([*needed, AC, "selective", name, "-aten.mm"])
    assert fault == (
        f"{name}: a value that begins with a dash reads as a flag\n  got: -aten.mm\n"
        f"  do: write {name}=-aten.mm"
    )
    run = parse_words([*needed, AC, "selective", f"{name}=-aten.mm,aten.gelu"])
    assert run.config.activation_checkpointing.save_ops == ["-aten.mm", "aten.gelu"]
