"""Every setting of a run: one frozen dataclass a section, one doc literal under each field.

The doc literals are the only description of a flag: `--help` and docs/config.md are generated from
them. Choices are `Literal` types, so that the parser and the help know them too.
"""

from dataclasses import dataclass, field
from typing import Literal

NO_FLAG = {"flag": False}  # metadata of a field that no flag sets by its name
Dtype = Literal["auto", "float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class TrainConfig:
    """The run itself. These flags carry no prefix."""

    model_name: str = ""
    """Model to fine-tune: a hub id, a folder, or a .gguf file. Required."""
    tokenizer_name: str | None = None
    """Tokenizer to use instead of the model's own: a hub id or a folder."""
    trust_remote_code: bool = False
    """Allow Python code shipped with the model or tokenizer to run on this machine."""
    dataset: str = ""
    """Training data: a .jsonl, .json, .csv or .parquet file, a hub id, or `custom_dataset`.
    Required."""
    output_dir: str = ""
    """Folder that receives the trained weights, logs and settings. Required."""
    overwrite_output_dir: bool = False
    """Replace an earlier result in `output_dir`; without it such a folder is refused."""
    save_model: bool = True
    """Write the trained weights at the end. False keeps only logs and metrics."""

    use_peft: bool = False
    """Train an adapter and keep the base model frozen; False trains every parameter."""
    peft_method: Literal["lora"] = "lora"
    """Adapter method used with `use_peft`."""

    batching_strategy: Literal["packing", "padding"] = "packing"
    """`packing`: whole rows up to `batch_size_training` x `context_length` tokens a
    micro-batch; `padding`: `batch_size_training` rows a micro-batch."""
    batch_size_training: int = 4
    """Rows a micro-batch with padding; with packing, multiples of `context_length` a
    micro-batch."""
    val_batch_size: int = 4
    """The same for evaluation. It changes speed and memory, never the evaluation loss."""
    context_length: int = 4096
    """Longest row in tokens; never more than the model's own limit."""
    gradient_accumulation_steps: int = 1
    """Micro-batches a step (one optimizer update)."""

    num_epochs: int = 3
    """Passes over the training rows."""
    max_train_step: int = 0
    """Stop after this many optimizer steps over all epochs; 0 = no limit."""
    run_validation: bool = True
    """Evaluate before the first step and then as `eval_every_steps` says, when there is a
    validation split."""
    eval_every_steps: int = 0
    """Optimizer steps between evaluations; 0 = at the end of each epoch."""
    max_eval_step: int = 0
    """Evaluate at most this many micro-batches; 0 = the whole validation split."""

    lr: float = 1e-4
    """Peak learning rate."""
    optimizer: Literal["adamw"] = "adamw"
    """Optimizer: AdamW with betas 0.9 and 0.999, epsilon 1e-8."""
    weight_decay: float = 0.0
    """Decoupled weight decay, per step times the learning rate."""
    scheduler: Literal["constant", "linear", "cosine", "wsd", "step"] = "cosine"
    """Learning rate over the steps: after warm-up constant, linear or cosine to 0, `wsd`
    (constant, then linear to 0 over the last fifth), or `step` (times `gamma` each epoch)."""
    warmup_steps: int | None = None
    """Optimizer steps of linear warm-up; unset = 3 % of all steps (none with `step`)."""
    gamma: float = 0.85
    """Factor on the learning rate after each epoch, with `--scheduler step`."""
    gradient_clipping: bool = True
    """Scale the gradient down when its global L2 norm exceeds `gradient_clipping_threshold`."""
    gradient_clipping_threshold: float = 1.0
    """Largest global L2 norm of the gradient."""
    seed: int = 42
    """Seed of adapter initialisation, row order and dropout."""

    device: Literal["auto", "cpu", "cuda", "mps", "xpu"] = "auto"
    """Where to train; `auto` takes the accelerator if there is one, else the CPU."""
    dtype: Dtype = "auto"
    """Storage of the frozen base weights; `auto` = the checkpoint's own on an accelerator,
    float32 on a CPU."""
    mixed_precision: bool = True
    """Compute in bfloat16 on an accelerator; False computes in the dtype of the base weights."""
    pure_bf16: bool = False
    """Store, compute and update everything in bfloat16 (gradients are still summed in float32)."""
    use_fp16: bool = False
    """Store the base and compute in float16, with a loss scaler; for cards without bfloat16."""


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
class LoraConfig:
    """LoRA adapters; the names are those of peft.LoraConfig."""

    r: int = 16
    """Rank of each update."""
    lora_alpha: float = 32.0
    """Scale of the update, divided by `r` (by its square root with `use_rslora`)."""
    lora_dropout: float = 0.0
    """Dropout on the adapters' input, as a probability."""
    target_modules: list[str] = field(default_factory=lambda: ["all-linear"])
    """Modules that get an adapter: name suffixes, one regular expression, or all-linear (all
    but the head)."""
    exclude_modules: list[str] = field(default_factory=list)
    """Modules that get none although they match `target_modules`."""
    target_parameters: list[str] = field(default_factory=list)
    """Parameters, not modules, that get an adapter, e.g. `mlp.experts.gate_up_proj` of a
    mixture of experts."""
    bias: Literal["none", "all", "lora_only"] = "none"
    """Biases that are trained too."""
    modules_to_save: list[str] = field(default_factory=list)
    """Modules that are trained whole and saved with the adapter."""
    use_rslora: bool = False
    """Scale by `lora_alpha` / sqrt(r)."""
    use_dora: bool = False
    """Train magnitude and direction apart (DoRA)."""
    init_lora_weights: Literal["true", "gaussian", "orthogonal"] = "true"
    """How A starts: `true` = Kaiming uniform; B starts at zero, so that the first step starts
    at the base model."""
    layers_to_transform: list[int] = field(default_factory=list)
    """Indices of the decoder blocks that get adapters; empty = all."""
    layers_pattern: list[str] = field(default_factory=list)
    """Name of the block list when it is not a common one, with `layers_to_transform`."""
    rank_pattern: dict[str, int] = field(default_factory=dict)
    """Other ranks for some modules, as JSON: {"q_proj": 8}."""
    alpha_pattern: dict[str, float] = field(default_factory=dict)
    """Other `lora_alpha` for some modules, as JSON."""


@dataclass(frozen=True)
class DataConfig:
    """How rows become tokens and labels, and labels become batches."""

    train_split: str = "train"
    """Split of a hub data set to train on."""
    val_split: str | None = None
    """Split of a hub data set to evaluate on; unset = `validation`, `val`, `dev` or none, as
    the set has it."""
    val_file: str | None = None
    """Local file to evaluate on, beside a local training file."""
    truncation: Literal["right", "drop", "error"] = "right"
    """Rows longer than `context_length`: cut at the right, dropped, or an error. What is lost
    is counted and printed."""
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
class RunConfig:
    """All sections of a run, and where each value came from."""

    train: TrainConfig = field(default_factory=TrainConfig)
    quantization: QuantizationConfig = field(default_factory=QuantizationConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    data: DataConfig = field(default_factory=DataConfig)
    custom_dataset: CustomDatasetConfig = field(default_factory=CustomDatasetConfig)
    origins: dict[str, str] = field(default_factory=dict, compare=False, metadata=NO_FLAG)
    """Canonical flag -> `default`, the name of the file, or the flag as it was typed."""


@dataclass(frozen=True)
class GenerateConfig:
    """`ftrecipes generate`: answers with and without an adapter."""

    adapter: str | None = None
    """Run folder or adapter folder; its base model is read from adapter_config.json. The run folder
    of a full fine-tuning answers alone."""
    model_name: str | None = None
    """Base model, when it is not where the adapter says, or to answer without an adapter."""
    prompt: str = ""
    """The user's message. Required."""
    system: str | None = None
    """System message put before it."""
    max_new_tokens: int = 256
    """Longest answer in tokens."""
    temperature: float = 0.0
    """0 takes the likeliest token; above 0 samples."""
    seed: int = 42
    """Seed of the sampling."""
    compare: bool = True
    """With an adapter, answer with the bare base model too."""
    device: Literal["auto", "cpu", "cuda", "mps", "xpu"] = "auto"
    """Where to run."""
    trust_remote_code: bool = False
    """Allow Python code shipped with the model or tokenizer to run on this machine."""
