"""The sections of a run's settings whose flags carry a prefix; see config/schema.py.

Those of adapters are in config/adapter_sections.py.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, NewType

from ftrecipes.config.targets import Target

NO_FLAG = {"flag": False}  # metadata of a field that no flag sets by its name
# The name of the one set, or sets as mappings; config/mixing.py has what they mean.
Dataset = NewType("Dataset", Any)
Dtype = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class FsdpConfig:
    """Training on many devices (torch FSDP2), with `--enable_fsdp`: each process keeps its share.
    `--fsdp_config FILE.json` reads the settings of transformers."""

    sharding_strategy: Literal["FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "NO_SHARD"] = (
        "FULL_SHARD"
    )
    """`FULL_SHARD`: a block is gathered for its forward and again for its backward;
    `SHARD_GRAD_OP`: it stays gathered in between; `HYBRID_SHARD`: groups of processes shard, and
    the groups are replicas; `NO_SHARD`: every process keeps everything."""
    sharding_group_size: int = 0
    """Processes that share one replica with HYBRID_SHARD; 0 = those of one machine."""
    replica_group_size: int = 0
    """Number of replicas with HYBRID_SHARD; 0 = as many as there are processes for."""
    cpu_offload: bool = False
    """Keep shards, their gradients and the optimizer in the memory of the host."""
    wrap_classes: list[str] = field(default_factory=list)
    """Class names of the modules that are gathered as one; empty = the model's decoder blocks."""
    load_from: Literal["each", "rank0"] = "each"
    """Who reads the files: each process its own share of every tensor, or the first process of a
    replica all of them, one tensor at a time, and sends the others theirs (for slow folders)."""
    timeout_seconds: int = 600
    """Without progress of a process for so long, the run ends and says where each process is."""


@dataclass(frozen=True)
class ActivationCheckpointingConfig:
    """Activations that are computed again in the backward instead of kept.
    `--activation_checkpointing WORD` sets `method`."""

    method: Literal["auto", "full", "selective", "none"] = "auto"
    """`full`: of what is checkpointed only the inputs are kept; `selective`: what matrix products
    and attention computed is kept too; `auto`: `full` with `enable_fsdp`, or when one of
    `target`, `every_n` and `offload` is given."""
    target: Target | None = None
    """What is checkpointed: `block`, `attention`, `mlp`, `norm`, class names or patterns of module
    names, and as JSON in which blocks: {"attention": "first-2, last-1", "mlp": [1]}; none = all
    blocks."""
    every_n: int = 0
    """Checkpoint each such block, from the first one on; 0 = as `target` says."""
    save_ops: list[str] = field(default_factory=list)
    """With `selective`: other operators whose results are kept (`aten.gelu`), or with a minus no
    longer; as a flag with an equals sign then: `--activation_checkpointing.save_ops=-aten.mm`."""
    offload: bool = False
    """Keep the inputs of what is checkpointed in the memory of the host."""
    count_ops: bool = False
    """Log after the first step how often each operator's result was kept and computed again."""


@dataclass(frozen=True)
class QuantizationConfig:
    """Quantized base weights (bitsandbytes). `--quantization WORD` sets `method`, and
    `quant_type` with it."""

    method: Literal["none", "4bit", "8bit"] = "none"
    """Bits of the frozen base weights; the short words nf4, fp4, int4 and int8 are accepted too."""
    quant_type: Literal["nf4", "fp4"] = "nf4"
    """Code book of 4-bit weights."""
    compute_dtype: Dtype = "auto"
    """Type that 4-bit weights are multiplied in; `auto` = bfloat16 on an accelerator, float32
    on a CPU."""
    use_double_quant: bool = True
    """Quantize the 4-bit scales as well: 0.127 instead of 0.5 bits a weight for them."""
    quant_storage: Literal["uint8", "float32", "bfloat16", "float16"] = "uint8"
    """Type that packs the 4-bit weights."""


@dataclass(frozen=True)
class DataConfig:
    """How rows become tokens and labels, and labels become batches."""

    format: Literal[
        "auto", "chat", "sharegpt", "instruction", "prompt_completion", "text", "tokens"
    ] = "auto"
    """What the rows are (docs/data.md); `auto` tells by the columns."""
    columns: dict[str, str] = field(default_factory=dict)
    """Other names of the columns, ours first: instruction=question,output=answer, or as JSON."""
    train_file: str | None = None
    """File of `alpaca_dataset` or `grammar_dataset`."""
    train_split: str = "train"
    """Split of a hub data set to train on."""
    val_split: str | None = None
    """Split of a hub data set to evaluate on; unset = `validation`, `val`, `dev` or none, as
    the set has it."""
    val_file: str | None = None
    """File, folder, glob or URL to evaluate on, also packed (.gz, .zst)."""
    val_fraction: float = 0.0
    """Share of the training rows that is set aside to evaluate on, drawn with a fixed seed."""
    chat_template: str | None = None
    """Chat template to write dialogs with instead of the tokenizer's own: a built-in one by name
    (docs/data.md) or a .jinja file. It is saved with the result."""
    train_on: Literal["assistant", "last_assistant", "completion", "all"] = "assistant"
    """Whose words of a dialog are trained: every answer's, the last one's, or everybody's;
    completion = the answers in the `completion` of a row, or its `output`, and no other format."""
    strict: bool = False
    """End the run where the check of template and rows has a warning."""
    on_bad_row: Literal["error", "skip"] = "error"
    """A row that can not be used: an error that names it, or skipped and counted."""
    truncation: Literal["right", "left", "split", "drop", "error"] = "right"
    """Rows longer than `context_length`: cut at the right or left, split into several rows,
    dropped, or an error. What is lost is counted and printed."""
    cache: bool = True
    """Keep tokenised rows in the user's cache folder, and take them from there when nothing that
    they depend on has changed."""
    shuffle: Literal["grouped", "plain"] = "grouped"
    """Order with padding: rows of like length together (batches in random order), or fully
    random rows."""


@dataclass(frozen=True)
class CustomDatasetConfig:
    """`--dataset custom_dataset`: a Python file makes the rows. Unknown options in this section
    reach it as given."""

    file: str | None = None
    """Python file, or file.py:function; the function defaults to get_custom_dataset."""
    train_split: str = "train"
    """Third argument of the function for the training rows."""
    test_split: str = "validation"
    """Third argument of the function for the evaluation rows."""
    data_path: str = ""
    """Free for the function's own use."""
    options: dict[str, str] = field(default_factory=dict, metadata=NO_FLAG)
    """Collects the options of this section that are not listed here; the function reads them as
    attributes."""


@dataclass(frozen=True)
class SavingConfig:
    """What is kept beside the result at the end."""

    best: bool = True
    """Keep the weights of the lowest evaluation loss in `best` inside `output_dir`."""


@dataclass(frozen=True)
class SamplesConfig:
    """Answers to fixed prompts before, during and after training."""

    prompts: str | None = None
    """File of prompts, one a line (.txt), or rows with `prompt` or `messages` (.jsonl)."""
    plain: bool = False
    """Give the model each prompt as it stands, without the chat template or the Alpaca prompt."""
    max_new_tokens: int = 64
    """Longest answer in tokens."""
    every_steps: int = 0
    """Optimizer steps between them; 0 = before the first step, at the end of each epoch, and
    after the last."""


@dataclass(frozen=True)
class TrackingConfig:
    """The numbers of metrics.jsonl for other tools; `--tracking wandb,tensorboard` names them."""

    wandb: bool = False
    """Log to Weights & Biases; needs the package wandb."""
    tensorboard: bool = False
    """Write TensorBoard event files into `output_dir`; needs the package tensorboard."""
    project: str = "ftrecipes"
    """wandb project."""
    entity: str | None = None
    """wandb user or team; unset = the account's default."""
    run_name: str | None = None
    """wandb name of the run; unset = the name of `output_dir`."""
    group: str | None = None
    """wandb group of runs."""
    job_type: str | None = None
    """wandb job type."""
    tags: list[str] = field(default_factory=list)
    """wandb tags."""
    notes: str | None = None
    """wandb notes."""
    mode: Literal["online", "offline", "disabled"] | None = None
    """wandb mode; unset = what the environment says (WANDB_MODE), else online."""
