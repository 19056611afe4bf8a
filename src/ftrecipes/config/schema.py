"""Every setting of a run: one frozen dataclass a section, one doc literal under each field.

The doc literals are the only description of a flag: `--help` and docs/config.md are generated from
them. Choices are `Literal` types, so that the parser and the help know them too.
"""

from dataclasses import dataclass, field
from typing import Literal

from ftrecipes.config.adapter_sections import (
    Ia3Config,
    LlamaAdapterConfig,
    LoraConfig,
    PrefixConfig,
    PromptConfig,
)
from ftrecipes.config.sections import (
    NO_FLAG,
    ActivationCheckpointingConfig,
    CustomDatasetConfig,
    DataConfig,
    Dataset,
    Dtype,
    FsdpConfig,
    QuantizationConfig,
    SamplesConfig,
    SavingConfig,
    TrackingConfig,
)


@dataclass(frozen=True)
class TrainConfig:
    """The run itself. These flags carry no prefix."""

    model_name: str = ""
    """Model to fine-tune: a hub id, a folder, or a .gguf file. Required."""
    tokenizer_name: str | None = None
    """Tokenizer to use instead of the model's own: a hub id or a folder."""
    trust_remote_code: bool = False
    """Allow Python code shipped with the model or tokenizer to run on this machine."""
    dataset: Dataset = ""
    """Training data: a .jsonl, .json, .csv, .parquet or .txt file, also packed (.jsonl.gz,
    .csv.zst), a folder or a glob of such files, a URL (https://, s3://, gs://, hf://), a hub id,
    `samsum_dataset`, `alpaca_dataset`, `grammar_dataset` or `custom_dataset`; or several with
    commas between them, each with its share of the rows that are drawn behind a colon
    (`a.jsonl:0.7,b.jsonl:0.3`) or all without; or a list of sets with settings of their own
    (docs/data.md). Required."""
    output_dir: str = ""
    """Folder that receives the trained weights, logs and settings. Required to train."""
    overwrite_output_dir: bool = False
    """Replace an earlier result in `output_dir`; without it such a folder is refused."""
    save_model: bool = True
    """Write the trained weights at the end. False keeps only logs and metrics."""

    enable_fsdp: bool = False
    """Train on the processes that torchrun started, sharded as the section `fsdp` says."""
    low_cpu_fsdp: bool = True
    """With `enable_fsdp`, no process ever holds the whole model; False = each loads all of it, and
    then drops what is not its share."""
    gradient_checkpointing: bool = False
    """The word of transformers for `--activation_checkpointing full`; one of the two alone."""

    use_peft: bool = False
    """Train an adapter and keep the base model frozen; False trains every parameter."""
    peft_method: Literal["lora", "ia3", "prefix", "prompt", "llama_adapter"] = "lora"
    """Adapter method used with `use_peft`; each has a section of its own."""
    from_peft_checkpoint: str | None = None
    """Adapter folder to go on from, with `use_peft`: its method, sizes and weights are taken."""
    freeze_layers: bool = False
    """In full fine-tuning, keep the embeddings and the first `num_freeze_layers` blocks frozen."""
    num_freeze_layers: int = 1
    """Decoder blocks from the bottom that `freeze_layers` keeps frozen."""
    new_tokens: list[str] = field(default_factory=list)
    """Tokens to add to the tokenizer; their embeddings are trained and saved."""
    resize_embeddings: bool = False
    """Enlarge the embeddings to the tokenizer's vocabulary where it is larger, and train the added
    rows; `new_tokens` does so by itself."""

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
    early_stopping_patience: int = 0
    """End training after this many evaluations in a row that are no better than the best; 0 =
    never."""

    lr: float = 1e-4
    """Peak learning rate."""
    optimizer: Literal["adamw", "anyprecision", "adamw_8bit", "paged_adamw_8bit"] = "adamw"
    """AdamW with betas 0.9 and 0.999 and epsilon 1e-8: torch's, `anyprecision` (all bfloat16, with
    Kahan summation; needs `pure_bf16`), or of bitsandbytes with 8-bit moments, `paged` or not."""
    weight_decay: float = 0.0
    """Decoupled weight decay, per step times the learning rate; norms and biases get none."""
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

    use_profiler: bool = False
    """Record a torch trace of `profiler_steps` steps, for chrome://tracing or Perfetto."""
    profiler_dir: str | None = None
    """Folder of the trace; unset = `profile` in `output_dir`."""
    profiler_start: int = 3
    """First step of the trace; those before it warm up."""
    profiler_steps: int = 3
    """Steps in the trace."""
    flop_counter: bool = False
    """Count the floating-point operations of one step, and tell the rate."""
    flop_counter_start: int = 3
    """The step that `flop_counter` counts."""


@dataclass(frozen=True)
class RunConfig:
    """All sections of a run, and where each value came from."""

    train: TrainConfig = field(default_factory=TrainConfig)
    fsdp: FsdpConfig = field(default_factory=FsdpConfig)
    activation_checkpointing: ActivationCheckpointingConfig = field(
        default_factory=ActivationCheckpointingConfig
    )
    quantization: QuantizationConfig = field(default_factory=QuantizationConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    ia3: Ia3Config = field(default_factory=Ia3Config)
    prefix: PrefixConfig = field(default_factory=PrefixConfig)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    llama_adapter: LlamaAdapterConfig = field(default_factory=LlamaAdapterConfig)
    data: DataConfig = field(default_factory=DataConfig)
    custom_dataset: CustomDatasetConfig = field(default_factory=CustomDatasetConfig)
    saving: SavingConfig = field(default_factory=SavingConfig)
    samples: SamplesConfig = field(default_factory=SamplesConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    origins: dict[str, str] = field(default_factory=dict, compare=False, metadata=NO_FLAG)
    """Canonical flag -> `default`, the name of the file, or the flag as it was typed."""


@dataclass(frozen=True)
class PreviewConfig(RunConfig):
    """`ftrecipes preview`: what a run with these flags would train on, token by token. It
    needs no `--output_dir`."""

    rows: int = 3
    """Training rows to show; the first, the longest, that with the fewest trained tokens, and then
    some in between. The totals are always those of all rows."""
    row: str | None = None
    """The one row to show, with every token: its number, or its name as messages give it
    ("train.jsonl line 17")."""
    html: str | None = None
    """Write the preview to this file too, as one page for a browser."""


@dataclass(frozen=True)
class PrepareConfig(RunConfig):
    """`ftrecipes prepare`: the rows of a run with these flags, tokenised and checked once for any
    number of runs. It needs no `--output_dir`."""

    to: str | None = None
    """Folder to write, which `--dataset` then takes: a new one, or one that was prepared earlier.
    Required."""


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
    plain: bool = False
    """Give the model the prompt as it stands, for one that was trained on plain text or on strings
    with completions; without it, it gets the chat template, or the Alpaca prompt."""
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
