"""Which dtype each part of a run has: one table from flags to (base, trainable, compute, reduce).

Dtypes are names (`bfloat16`), so that torch is not needed here.
"""

from dataclasses import dataclass
from pathlib import Path

from ftrecipes.config.faults import Fault
from ftrecipes.config.flags import asked, value_of
from ftrecipes.config.schema import RunConfig

FLOAT32, BFLOAT16, FLOAT16 = "float32", "bfloat16", "float16"
CPU_BFLOAT16_UNITS = {"avx512_bf16", "amx_bf16", "bf16"}


@dataclass(frozen=True)
class Precision:
    """Dtype names of the parts of a run.

    `base`: storage of the weights that are neither trained nor quantized. `trainable`: storage of
    the weights that are trained. `compute`: the type matrices are multiplied in. `reduce`: the type
    gradients are summed in over ranks. `autocast`: compute differs from a storage type, so that
    torch.autocast has to cast. `loss_scaling`: float16 gradients need a scaled loss.
    """

    base: str
    trainable: str
    compute: str
    reduce: str
    autocast: bool
    loss_scaling: bool


def resolve_precision(
    config: RunConfig, *, device_type: str, checkpoint_dtype: str | None
) -> Precision:
    """The row of the table for these flags.

    `checkpoint_dtype` is the dtype name in the model's own files, None when they do not say.
    In full fine-tuning every weight is trained, so that `base` equals `trainable`.
    """
    train = config.train
    accelerator = device_type != "cpu"
    quantized = config.quantization.method == "4bit"
    stored = checkpoint_dtype if checkpoint_dtype in (FLOAT32, BFLOAT16, FLOAT16) else BFLOAT16
    base = train.dtype if train.dtype != "auto" else stored if accelerator else FLOAT32
    compute_dtype = config.quantization.compute_dtype if quantized else "auto"

    if train.pure_bf16:
        base = trainable = compute = BFLOAT16
    elif not train.mixed_precision:
        trainable = compute = base if compute_dtype == "auto" else compute_dtype
    else:
        trainable = FLOAT32
        if train.use_fp16:
            base, compute = FLOAT16 if train.dtype == "auto" else train.dtype, FLOAT16
        elif compute_dtype != "auto":
            compute = compute_dtype
        else:
            compute = BFLOAT16 if accelerator else base
        # autocast only lowers a precision: float32 products need float32 weights
        base = FLOAT32 if compute == FLOAT32 else base
    base = base if train.use_peft else trainable
    autocast = train.mixed_precision and {base, trainable} != {compute}
    return Precision(base, trainable, compute, FLOAT32, autocast, train.use_fp16)


def policy_dtype(precision: Precision) -> str | None:
    """The type that sharded parameters are cast to when they are gathered; None = none is cast."""
    same = {precision.base, precision.trainable} == {precision.compute}
    return None if same else precision.compute


def precision_faults(config: RunConfig) -> list[Fault]:
    """Pairs of flags that ask for different precisions."""
    train, quantization = config.train, config.quantization
    pairs = [
        ("pure_bf16", "use_fp16", train.pure_bf16 and train.use_fp16),
        ("pure_bf16", "dtype", train.pure_bf16 and train.dtype not in ("auto", BFLOAT16)),
        (
            "pure_bf16",
            "mixed_precision",
            train.pure_bf16 and train.mixed_precision and asked(config, "mixed_precision"),
        ),
        ("use_fp16", "dtype", train.use_fp16 and train.dtype == BFLOAT16),
        ("use_fp16", "mixed_precision", train.use_fp16 and not train.mixed_precision),
        (
            "dtype",
            "use_peft",
            not train.use_peft
            and train.mixed_precision
            and train.dtype not in ("auto", FLOAT32)
            and not (train.pure_bf16 and train.dtype == BFLOAT16),
        ),
    ]
    if quantization.method == "4bit" and quantization.compute_dtype != "auto":
        compute_dtype = quantization.compute_dtype
        low_base = train.dtype not in ("auto", FLOAT32)
        lost = compute_dtype == FLOAT32 and low_base and train.mixed_precision
        name = "quantization.compute_dtype"
        pairs += [
            ("pure_bf16", name, train.pure_bf16 and compute_dtype != BFLOAT16),
            ("use_fp16", name, train.use_fp16 and compute_dtype != FLOAT16),
            ("dtype", name, lost and not train.pure_bf16 and not train.use_fp16),
        ]
    return [_contradiction(config, left, right) for left, right, found in pairs if found]


def precision_warnings(
    precision: Precision, *, device_type: str, cpu_has_bfloat16: bool
) -> list[str]:
    """What is obeyed although it will be slow."""
    if device_type != "cpu" or precision.compute == FLOAT32:
        return []
    if precision.compute == BFLOAT16 and cpu_has_bfloat16:
        return []
    return [
        f"this CPU has no units for {precision.compute}: steps can take about 40 times as long as "
        "in float32 (leave --dtype, --pure_bf16, --use_fp16 and --quantization.compute_dtype out)"
    ]


def cpu_has_bfloat16(cpuinfo: str | None = None) -> bool:
    """Whether the CPU multiplies bfloat16 in hardware, by the text of /proc/cpuinfo.

    True where that file does not exist: nothing is known, and nothing is warned about.
    """
    path = Path("/proc/cpuinfo")
    if cpuinfo is None:
        if not path.exists():
            return True
        cpuinfo = path.read_text(encoding="utf-8", errors="replace")
    return not CPU_BFLOAT16_UNITS.isdisjoint(cpuinfo.split())


def _contradiction(config: RunConfig, left: str, right: str) -> Fault:
    if right == "use_peft":
        return Fault(
            f"--dtype {config.train.dtype} without --use_peft: every weight is trained then, and "
            "trained weights are kept in float32",
            do="use --pure_bf16 to store and update them in bfloat16, or leave --dtype out",
            flags=(left, right),
        )
    one, other = (f"--{name} {str(value_of(config, name)).lower()}" for name in (left, right))
    return Fault(
        f"{one} and {other} contradict each other", do="leave one out", flags=(left, right)
    )
