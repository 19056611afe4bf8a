"""`--fsdp_config FILE.json`: the settings of FSDP in the spelling of transformers and accelerate.

Their keys, with or without the prefix `fsdp_`, in transformers 5.24: TrainingArguments.fsdp_config,
and in accelerate 1.15: FullyShardedDataParallelPlugin. Those of llm-foundry for activation
checkpointing are read too. What has no meaning here is ignored with one
warning; what asks for something that is not done is refused.
"""

import json
from collections.abc import Mapping
from typing import Any

from ftrecipes.config.entries import unique
from ftrecipes.config.faults import Fault
from ftrecipes.config.flags import flags_of
from ftrecipes.config.legacy import REENTRANT
from ftrecipes.config.names import close
from ftrecipes.config.schema import RunConfig
from ftrecipes.config.source import FSDP_FILE, REFUSALS, Source
from ftrecipes.config.values import FALSE_WORDS, TRUE_WORDS

PREFIX = "fsdp_"
STRATEGY = "fsdp.sharding_strategy"
FLAGS = {  # their key -> our flag
    "transformer_layer_cls_to_wrap": "fsdp.wrap_classes",
    "transformer_cls_names_to_wrap": "fsdp.wrap_classes",
    "activation_checkpointing": "activation_checkpointing.method",
    "activation_checkpointing_offload": "activation_checkpointing.offload",
    "activation_checkpointing_target": "activation_checkpointing.target",
    "activation_cpu_offload": "activation_checkpointing.offload",
    "reshard_after_forward": STRATEGY,
    "sharding_strategy": STRATEGY,
    "cpu_offload": "fsdp.cpu_offload",
    "offload_params": "fsdp.cpu_offload",
    "cpu_ram_efficient_loading": "low_cpu_fsdp",
}
# FSDP2 knows whether to reshard; FSDP1 numbered its strategies, in the order of accelerate's list.
STRATEGIES = {
    **dict.fromkeys(TRUE_WORDS, "FULL_SHARD"),
    **dict.fromkeys(FALSE_WORDS, "SHARD_GRAD_OP"),
    "2": "SHARD_GRAD_OP",
    "3": "NO_SHARD",
    "4": "HYBRID_SHARD",
    "5": "HYBRID_SHARD_ZERO2",
}
_NO_SWITCH = "FSDP2 has no such switch"
_SAVED = "weights are saved as safetensors in the Hugging Face layout"
_NO_XLA = "XLA devices are not trained on"
# key -> why it means nothing here, and the values that are not worth a word
IGNORED = {
    "use_orig_params": (_NO_SWITCH, ()),
    "sync_module_states": (_NO_SWITCH, ()),
    "limit_all_gathers": (_NO_SWITCH, ()),
    "forward_prefetch": (_NO_SWITCH, FALSE_WORDS),
    "backward_prefetch": (_NO_SWITCH, ("no_prefetch",)),
    "state_dict_type": (_SAVED, ()),
    "state_dict_config": (_SAVED, ()),
    "optim_state_dict_config": (_SAVED, ()),
    "min_num_params": ("the units are blocks, not sizes", ("0",)),
    "xla_fsdp_settings": (_NO_XLA, ("{}",)),
    "xla_fsdp_grad_ckpt": (_NO_XLA, FALSE_WORDS),
}
# key -> why it is refused, what to do, and the values that are no such request
REFUSED = {
    "version": ("sharding is that of FSDP2", "write 2, or leave it out", ("2",)),
    "auto_wrap_policy": (
        "what is gathered as one is a decoder block, or a class of modules",
        "leave it out, or name the classes in transformer_layer_cls_to_wrap",
        ("transformer_based_wrap",),
    ),
    "activation_checkpointing_reentrant": (REENTRANT, "leave it out", FALSE_WORDS),
    "mixed_precision_policy": (
        "the precision has flags of its own",
        "leave it out, and see --mixed_precision, --pure_bf16 and --use_fp16",
        (),
    ),
    "ignored_modules": ("every module is sharded", "leave it out", ("", "[]")),
    "xla": (_NO_XLA, "leave it out", FALSE_WORDS),
    "xla_fsdp_v2": (_NO_XLA, "leave it out", FALSE_WORDS),
}


def read_fsdp_file(path: str) -> Source:
    """What the file says, as flags; its faults and warnings are in the result."""
    source = Source(RunConfig, file=path)
    try:
        settings = _read_json(path)
    except (OSError, ValueError, RecursionError) as error:  # JSONDecodeError is a ValueError
        sections = ("fsdp.", "activation_checkpointing.")
        flags = [name for name in flags_of(RunConfig) if name.startswith(sections)]
        source.faults.append(
            Fault(
                f"--{FSDP_FILE} {path}: can not be used",
                got=str(error),
                expected="a JSON file of what transformers calls fsdp_config",
                flags=(FSDP_FILE, "low_cpu_fsdp", *flags),
            )
        )
        return source
    ignored: dict[str, list[str]] = {}
    for name, value in settings.items():
        key, word = name.removeprefix(PREFIX), str(value).strip().lower()
        if value is None:
            continue
        if key in FLAGS:
            value = STRATEGIES.get(word, value) if FLAGS[key] == STRATEGY else value
            source.read(FLAGS[key], name, value)
        elif key in REFUSED:
            _refuse(source, name, value, word=word)
        elif key not in IGNORED:
            _unknown(source, name, value)
        elif word not in IGNORED[key][1]:
            ignored.setdefault(IGNORED[key][0], []).append(name)
    if ignored:
        parts = (f"{', '.join(names)} ({why})" for why, names in ignored.items())
        source.warnings.append(f"{path}: ignored: {'; '.join(parts)}")
    return source


def _read_json(path: str) -> Mapping[str, Any]:
    with open(path, encoding="utf-8-sig") as file:
        content = json.load(file, object_pairs_hook=unique)
    if not isinstance(content, dict):
        raise ValueError(f"no JSON object, but {type(content).__name__}")
    if isinstance(content.get(FSDP_FILE), dict):
        raise ValueError(f"a file with more than that: keep what is under its {FSDP_FILE}")
    return content


def _refuse(source: Source, name: str, value: object, *, word: str) -> None:
    why, do, silent = REFUSED[name.removeprefix(PREFIX)]
    if word not in silent:
        source.fault(f"{REFUSALS['refused']}: {why}", name, got=value, do=do)


def _unknown(source: Source, name: str, value: object) -> None:
    key = name.removeprefix(PREFIX)
    ours = f"fsdp.{key}"
    near = close(key, [*FLAGS, *IGNORED, *REFUSED])
    if ours in flags_of(RunConfig):
        do = f"take it out, and say --{ours}"
    else:
        do = f"did you mean {near}?" if near else "take it out"
    source.fault("no such setting of transformers' fsdp_config", name, got=value, do=do)
