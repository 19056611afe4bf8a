"""What can not be combined with --enable_fsdp, and what means nothing without it."""

from collections.abc import Iterator

from ftrecipes.config.adapter_folder import METHODS, continued_settings, method_of
from ftrecipes.config.faults import Fault, idle, shown
from ftrecipes.config.flags import asked_of, flags_of, value_of
from ftrecipes.config.precision import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    Precision,
    policy_dtype,
    resolve_precision,
)
from ftrecipes.config.schema import RunConfig
from ftrecipes.config.source import FSDP_FILE
from ftrecipes.config.stored import settled, stored_in

SWITCH = "enable_fsdp"
GROUPS = ("fsdp.sharding_group_size", "fsdp.replica_group_size")
STORAGE = "quantization.quant_storage"
# Starts that leave the base as it is; `eva` only among the settings of an adapter with weights.
PLAIN_INIT = ("true", "false", "none", "gaussian", "orthogonal", "eva")


def check_fsdp(config: RunConfig) -> Iterator[Fault]:
    """Faults of a run with --enable_fsdp, or of settings that wait for it."""
    if not config.train.enable_fsdp:
        yield from _without(config)
        return
    yield from _fsdp(config)
    yield from _run(config)
    if config.train.use_peft:
        yield from _adapter(config)
    yield from _vocabulary(config)
    yield from _storage(config)


def storage_fault(config: RunConfig, precision: Precision, *, casts: bool) -> Fault | None:
    """The fault of 4-bit weights that are packed in a type which sharding would cast.

    `config` with the quantization that the base is stored in (`stored.settled`). `casts` tells
    whether the sharded parameters are cast when they are gathered (`policy_dtype` is not None):
    packed bytes that are read as numbers, and rounded, are no weights any more. uint8 is never
    cast (torch 2.13, _fsdp_param.py, init_dtype_attrs).
    """
    storage = config.quantization.quant_storage
    is_packed = config.train.enable_fsdp and config.quantization.method == "4bit"
    if not is_packed or not casts or storage in ("uint8", precision.compute):
        return None
    was_stored = config.origins.get(STORAGE, "default") == "default"
    of_base = f"--model_name {config.train.model_name}: its 4-bit weights are stored as {storage}"
    return Fault(
        f"{of_base if was_stored else f'--{STORAGE} {storage}'} with --{SWITCH}: gathering casts "
        f"what is not in {precision.compute}, which would destroy packed weights",
        expected=f"uint8 or {precision.compute}",
        do="give the unquantized model: --quantization 4bit packs it as uint8"
        if was_stored
        else f"leave --{STORAGE} out",
        flags=(STORAGE, SWITCH, "model_name") if was_stored else (STORAGE, SWITCH),
    )


def _without(config: RunConfig) -> Iterator[Fault]:
    """Settings of FSDP in a run without it; what switches something off asks for nothing."""
    names = [name for name in flags_of(RunConfig) if name.startswith("fsdp.")]
    names = [name for name in asked_of(config, names) if value_of(config, name)]
    if config.train.low_cpu_fsdp:
        names = [*asked_of(config, ["low_cpu_fsdp"]), *names]
    if FSDP_FILE in config.origins:
        names = [FSDP_FILE, *names]
    if names:
        yield idle(names, f"without --{SWITCH} one process trains", SWITCH)


def _fsdp(config: RunConfig) -> Iterator[Fault]:
    """The section itself."""
    fsdp = config.fsdp
    groups = [name for name in GROUPS if value_of(config, name) > 0]
    if groups and fsdp.sharding_strategy != "HYBRID_SHARD":
        why = f"--fsdp.sharding_strategy is {fsdp.sharding_strategy}, not HYBRID_SHARD"
        yield idle(groups, why, "fsdp.sharding_strategy")
    odd = [name for name in fsdp.wrap_classes if not name.isidentifier()]
    if odd:
        yield Fault(
            "--fsdp.wrap_classes: no names of classes",
            got=", ".join(map(shown, odd)),
            expected="class names alone, such as LlamaDecoderLayer",
            flags=("fsdp.wrap_classes",),
        )
    if fsdp.load_from == "rank0" and not config.train.low_cpu_fsdp:
        why = "with --low_cpu_fsdp false each process reads the whole model"
        yield idle(["fsdp.load_from"], why, "low_cpu_fsdp")


def _run(config: RunConfig) -> Iterator[Fault]:
    """What sharded weights can not be quantized to, updated by, or kept on."""
    train = config.train
    if config.quantization.method == "8bit":
        yield _refused(
            "quantization.method",
            "8bit",
            why="8-bit weights of bitsandbytes can not be sharded",
            do="use --quantization 4bit",
            label="quantization",
        )
    if train.optimizer.endswith("_8bit"):
        yield _refused(
            "optimizer",
            train.optimizer,
            why="the 8-bit optimizers of bitsandbytes do not know shards",
            do="use --optimizer adamw: each process holds its share of its state",
        )
    if train.device == "mps":
        do = "use --device cuda, xpu or cpu"
        yield _refused("device", "mps", why="mps has no collectives", do=do)


def _adapter(config: RunConfig) -> Iterator[Fault]:
    """Adapters that need whole weights, or attach to more than one block."""
    method = method_of(config)
    if method not in ("lora", "ia3"):
        yield _refused(
            "peft_method",
            method,
            why="its parameters belong to no block",
            do="use --peft_method lora or ia3",
        )
        return
    folder = config.train.from_peft_checkpoint
    theirs = continued_settings(config)
    if folder is not None:
        yield from _continued(folder, theirs)
        return
    lora = config.lora
    if method != "lora":
        return
    if lora.init_lora_weights not in PLAIN_INIT:
        yield _refused(
            "lora.init_lora_weights",
            lora.init_lora_weights,
            why="it is computed from whole weights",
            do="leave it out",
        )
    if lora.use_dora:
        do = "leave it out; --lora.use_rslora works"
        yield _refused("lora.use_dora", "true", why="norms of whole weights are needed", do=do)
    if lora.modules_to_save:
        yield _refused(
            "lora.modules_to_save",
            ",".join(lora.modules_to_save),
            why="it trains whole copies of modules",
            do="leave it out; --lora.target_modules may name the modules instead",
        )


def _continued(folder: str, theirs: dict) -> Iterator[Fault]:
    """The same for the settings of an adapter that is trained on."""
    init = str(theirs.get("init_lora_weights", "true")).lower()
    found = [name for name in ("use_dora", "modules_to_save") if theirs.get(name)]
    found += ["trainable_token_indices"] if theirs.get("trainable_token_indices") else []
    found += [] if init in PLAIN_INIT else ["init_lora_weights"]
    if found and theirs.get("peft_type") in METHODS:
        yield Fault(
            f"--from_peft_checkpoint {folder} does not work with --{SWITCH}: it needs weights that "
            "are whole",
            got=", ".join(f"{name}: {shown(theirs[name])}" for name in found),
            expected="plain LoRA or IA3",
            do=f"train it on without --{SWITCH}",
            flags=("from_peft_checkpoint", SWITCH),
        )


def _vocabulary(config: RunConfig) -> Iterator[Fault]:
    do = f"leave it out, or train without --{SWITCH}"
    for name in ("new_tokens", "resize_embeddings"):
        value = value_of(config, name)
        if value:
            text = ",".join(value) if isinstance(value, list) else "true"
            yield _refused(name, text, why="sharded embeddings can not be enlarged", do=do)


def _storage(config: RunConfig) -> Iterator[Fault]:
    """Packed weights that would be cast on whatever device, from whatever files."""
    known = settled(config, stored_in(config.train.model_name))
    devices = ("cpu", "cuda") if config.train.device == "auto" else (config.train.device,)
    faults = []
    for device in devices:
        for dtype in (FLOAT32, BFLOAT16, FLOAT16):
            precision = resolve_precision(known, device_type=device, checkpoint_dtype=dtype)
            casts = policy_dtype(precision) is not None
            faults.append(storage_fault(known, precision, casts=casts))
    if faults[0] is not None and None not in faults:
        yield faults[0]


def _refused(flag: str, value: str, *, why: str, do: str, label: str = "") -> Fault:
    return Fault(
        f"--{label or flag} {shown(value)} does not work with --{SWITCH}: {why}",
        do=do,
        flags=(flag, SWITCH),
    )
