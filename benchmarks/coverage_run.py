"""One model type for benchmarks/coverage.py: the recipe's own run, and plain PEFT beside it.

All rows are in every step, so that no order of rows is needed to repeat the run: the reference
takes them one by one, each alone, without padding. Adam moves each weight by about its learning
rate a step, so that the later losses depend on the gradients of the steps before. (At 1e-2 the
noise of near-zero gradients sends tokens of some mixtures to other experts.)
"""

import json
import logging
import re
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from bitsandbytes.functional import dequantize_4bit, quantize_4bit
from peft import PeftConfig, get_peft_model
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.pytorch_utils import Conv1D

from ftrecipes.config.errors import RecipeError
from ftrecipes.config.schema import QuantizationConfig
from ftrecipes.finetuning import main
from ftrecipes.model.initial import initialise_adapter
from ftrecipes.model.packed import packed_parameters
from tests import reference, tiny_families
from tests.model.loading import load
from tests.tiny_tokenizers import build_tokenizer

STEPS = 3
LR = 2e-3
MAX_NORM = 1.0
SEED = 42
# float32 sums in another order; Adam turns a gradient of rounding noise into a step of full size
TOLERANCE = 3e-5
ANSWERS = ("rain", "bread is bread", "iron, salt and wool", "the quick brown fox " * 3)
HEADS = {
    "logits are made in chunks": "chunked",
    "logits are made at once": "own",
    "logits are made at every position": "full",
}
SHARE = re.compile(r"(\d+%) of the weights are quantized")


@dataclass(frozen=True)
class Attempt:
    """What became of one type. `difference` is relative, the largest over all losses."""

    model_type: str
    outcome: str  # equal, refused, differs, unmoved, crashed
    path: str = ""
    why: str = ""
    difference: float | None = None
    seconds: float = 0.0
    share: str = ""  # of the weights that are quantized
    losses: tuple[float, ...] = ()  # of the steps and of the evaluation


def try_type(model_type: str, folder: Path, *, quantization: str = "none") -> Attempt:
    """Train the type for STEPS steps in `folder` and compare; what goes wrong is the outcome."""
    try:
        save_inputs(model_type, folder)
        began = time.perf_counter()
        losses, heard = train(folder, quantization)
        seconds = time.perf_counter() - began
        expected = expected_losses(folder, quantization)
    except RecipeError as error:
        why = " ".join(line.strip() for line in str(error).splitlines()[:2])
        return Attempt(model_type, "refused", why=why)
    except Exception as error:  # noqa: BLE001  reported as a crash in the table
        return Attempt(model_type, "crashed", why=f"{type(error).__name__}: {first_line(error)}")
    difference = max(abs(a - b) / b for a, b in zip(losses, expected, strict=True))
    outcome = "equal" if difference < TOLERANCE else "differs"
    if abs(expected[STEPS - 1] - expected[0]) < 100 * TOLERANCE * expected[0]:
        outcome = "unmoved"  # the comparison would see no wrong gradient
    path, why = path_of(next(line for line in heard if "logits are made" in line))
    shares = [SHARE.search(line) for line in heard]
    share = next((found[1] for found in shares if found), "")
    return Attempt(model_type, outcome, path, why, difference, seconds, share, tuple(losses))


def save_inputs(model_type: str, folder: Path) -> None:
    """A model with its tokenizer, and two files of dialogs of unlike lengths."""
    tokenizer = build_tokenizer("chatml")
    model = tiny_families.build(model_type, vocab_size=len(tokenizer))
    model.save_pretrained(folder / "model")
    # some types keep only their text part's config in the model; checkpoints have the whole one
    tiny_families.small_config(model_type, vocab_size=len(tokenizer)).save_pretrained(
        folder / "model"
    )
    tokenizer.save_pretrained(folder / "model")
    for name, answers in (("train", ANSWERS), ("validation", ANSWERS[1:3])):
        dialogs = [
            [
                {"role": "user", "content": f"Tell me about {name} {index}."},
                {"role": "assistant", "content": answer.strip()},
            ]
            for index, answer in enumerate(answers)
        ]
        lines = [json.dumps({"messages": dialog}) + "\n" for dialog in dialogs]
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


def train(folder: Path, quantization: str, *, ranks: int = 1) -> tuple[list[float], list[str]]:
    """The recipe: losses of its steps and of its last evaluation, and what it logged.

    With several `ranks` all of them call it, and the rows of a step are shared out.
    """
    out = folder / ("out" if ranks == 1 else f"out{ranks}")
    heard = Listener()
    logger = logging.getLogger("ftrecipes")
    logger.addHandler(heard)
    logger.setLevel(logging.INFO)
    main(
        model_name=folder / "model",
        dataset=folder / "train.jsonl",
        output_dir=out,
        enable_fsdp=ranks > 1,
        use_peft=True,
        batching_strategy="padding",
        batch_size_training=len(ANSWERS) // ranks,
        num_epochs=STEPS,
        lr=LR,
        scheduler="constant",
        warmup_steps=0,
        gradient_clipping_threshold=MAX_NORM,
        seed=SEED,
        device="cpu",
        **{"data.val_file": folder / "validation.jsonl", "quantization": quantization},
    )
    lines = (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    metrics = [json.loads(line) for line in lines]
    steps = [line["loss"] for line in metrics if line["kind"] == "step"]
    last = [line["loss"] for line in metrics if line["kind"] == "evaluation"][-1]
    return [*steps, last], heard.messages


def expected_losses(folder: Path, quantization: str) -> list[float]:
    """The same from transformers, PEFT and torch.optim.AdamW alone, row by row."""
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    rows, val_rows = (
        reference.chat_rows(folder / f"{name}.jsonl", tokenizer) for name in ("train", "validation")
    )
    base = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    if quantization == "4bit":
        round_weights(base, folder / "model")
    settings = PeftConfig.from_pretrained(folder / "out")
    settings.inference_mode = False
    model = get_peft_model(base, settings)
    initialise_adapter(model, seed=SEED)  # PEFT itself draws other first values
    model.train()
    losses = reference.train(model, [rows] * STEPS, lr=LR, max_norm=MAX_NORM)
    return [*losses, reference.evaluate(model, val_rows)]


@torch.no_grad()
def round_weights(model: nn.Module, folder: Path) -> None:
    """Round the weights that the recipe packs; it is asked for their names alone.

    What bitsandbytes makes of a weight depends on where its blocks of 64 begin: GPT-2 keeps [in,
    out], and a packed layer is [out, in].
    """
    for name in packed_parameters(load(folder, QuantizationConfig(method="4bit"))):
        turned = isinstance(model.get_submodule(name.rpartition(".")[0]), Conv1D)
        weight = model.get_parameter(name).T if turned else model.get_parameter(name)
        numbers, state = quantize_4bit(
            weight.contiguous(), quant_type="nf4", compress_statistics=True, blocksize=64
        )
        weight.copy_(dequantize_4bit(numbers, state))


class Listener(logging.Handler):
    """Keeps what the recipe logs."""

    def __init__(self):
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message."""
        self.messages.append(record.getMessage())


def path_of(reason: str) -> tuple[str, str]:
    """(`flat, chunked`, why) of the line that the recipe logs about its route."""
    rows, _, logits = reason.rpartition("; ")
    head = next(name for start, name in HEADS.items() if logits.startswith(start))
    if rows.startswith("rows are laid flat"):
        return f"flat, {head}", ""
    return f"padded, {head}", rows.removeprefix("rows are padded, because ")


def first_line(error: Exception) -> str:
    """The first words of a foreign message."""
    return " ".join(str(error).split())[:200]
