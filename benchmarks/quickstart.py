"""The quickstart's training against a plain transformers + PEFT loop: same rows, same adapter.

    ./quickstart.sh                      # makes the model folder
    python benchmarks/quickstart.py      # about ten minutes on two cores

Both sides take the same rows in each step, the same initial adapter, AdamW, learning rates and
clipping, in float32. `plain` pads each micro-batch and lets transformers compute logits and loss.
Each run is a process of its own, in the order A B A B; the first step of each is not timed. The
losses of every step are compared before any speed is printed.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
import transformers

from ftrecipes.config.parse import parse
from ftrecipes.data.loader import Loader, loader_of
from ftrecipes.data.splits import read_splits
from ftrecipes.finetuning import settle_precision
from ftrecipes.model.resolve import load_tokenizer, resolve_source
from ftrecipes.optim.schedule import Schedule, build_schedule, count_steps
from ftrecipes.runtime import log
from ftrecipes.runtime.seed import seed_everything
from ftrecipes.runtime.world import start_world
from ftrecipes.train.assemble import build_model
from ftrecipes.train.build import open_training
from ftrecipes.train.state import TrainState
from ftrecipes.train.step import train_step

MODEL = "quickstart-output/SmolLM2-135M-Instruct"
SETTINGS = "recipes/quickstart.yaml"
# float32 sums in another order: 2e-7 was seen over five steps.
LOSS_TOLERANCE = 1e-5


def main() -> int:
    """Print the table; 1 when the losses differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5, help="steps of each run, the first untimed")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each side")
    parser.add_argument("--side", choices=("ours", "plain"), help="one run, as JSON (internal)")
    options = parser.parse_args()
    if options.side:
        log.start()
        transformers.utils.logging.set_verbosity_error()
        sys.stdout.write(json.dumps(measure(options.side, steps=options.steps)) + "\n")
        return 0
    runs = {"ours": [], "plain": []}
    for _ in range(options.repeats):
        for side, results in runs.items():
            words = [sys.executable, __file__, "--side", side, "--steps", str(options.steps)]
            output = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
            results.append(json.loads(output.splitlines()[-1]))
            sys.stderr.write(f"{side}: {results[-1]}\n")
    return report(runs)


def report(runs: dict[str, list[dict]]) -> int:
    """Losses first, then the best of each side and the ratios."""
    ours, plain = (min(runs[side], key=lambda run: run["cpu_seconds"]) for side in runs)
    pairs = list(zip(ours["losses"], plain["losses"], strict=True))
    gap = max(abs(left - right) for left, right in pairs)
    lines = ["step   ours      plain"]
    lines += [f"{step:4}   {a:.5f}   {b:.5f}" for step, (a, b) in enumerate(pairs, start=1)]
    lines += [f"largest difference of the losses: {gap:.1e} (allowed {LOSS_TOLERANCE:.0e})", ""]
    lines.append(f"{'':24} {'ours':>9} {'plain':>9} {'plain/ours':>11}")
    for key in ("cpu_seconds", "wall_seconds", "peak_mib_above_start"):
        left, right = (min(run[key] for run in runs[side]) for side in runs)
        ratio = f"{right / left:11.2f}" if left else f"{'-':>11}"  # a tiny model adds no peak
        lines.append(f"{key:24} {left:9.1f} {right:9.1f} {ratio}")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0 if gap <= LOSS_TOLERANCE else 1


def measure(side: str, *, steps: int) -> dict:
    """Losses of `steps` steps, and what all but the first cost this process."""
    with tempfile.TemporaryDirectory() as folder:
        sides = {"ours": ours, "plain": plain}
        with sides[side](*build(steps, folder)) as take_step:
            start = peak_mib()
            losses = [take_step(0)]
            cpu, wall = time.process_time(), time.perf_counter()
            losses += [take_step(step) for step in range(1, steps)]
            return {
                "cpu_seconds": time.process_time() - cpu,
                "wall_seconds": time.perf_counter() - wall,
                "peak_mib_above_start": peak_mib() - start,
                "losses": losses,
            }


def build(steps: int, folder: str):
    """What both sides start from: settings, rows, the model with its initial adapter ..."""
    flags = {"config": SETTINGS, "model_name": MODEL, "output_dir": folder, "device": "cpu"}
    flags |= {"run_validation": False, "max_train_step": steps, "num_epochs": steps}
    config = parse(flags).config
    world = start_world("cpu")
    seed_everything(config.train.seed)
    source = resolve_source(MODEL, None, trust_remote_code=False)
    tokenizer = load_tokenizer(source)
    rows = read_splits(config, tokenizer).rows
    precision = settle_precision(config, source, world)
    model, _ = build_model(config, source, precision, world, tokenizer=tokenizer)
    return config, rows, model, tokenizer, world, precision


@contextmanager
def ours(config, rows, model, tokenizer, world, precision):
    """The product's own step."""
    opening = open_training(
        *(config, model, rows, None),
        tokenizer=tokenizer,
        metrics=Path(config.train.output_dir) / "metrics.jsonl",
        precision=precision,
        world=world,
        state=TrainState(),
    )
    with opening as training:
        model.train()
        plan = steps_of(training.loader, training.schedule)

        def take_step(step: int) -> float:
            batches = [training.loader.micro_batch(row_ids) for row_ids in plan[step]]
            result = train_step(
                training.batch_loss,
                training.updater,
                batches,
                totals=training.loader.totals(plan[step]),
                step=step + 1,
                lr=training.schedule.lr_at(step),
                sources=rows.sources,
            )
            return result.loss

        yield take_step


@contextmanager
def plain(config, rows, model, *_):
    """Padding, the model's own loss, and torch's optimizer, as most scripts are written."""
    train = config.train
    loader = loader_of(config, rows)
    epoch_steps = count_steps(
        loader.steps_per_epoch, num_epochs=train.num_epochs, max_train_step=train.max_train_step
    )
    schedule = build_schedule(train, epoch_steps)
    plan = steps_of(loader, schedule)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, weight_decay=train.weight_decay)
    model.train()

    def take_step(step: int) -> float:
        batches = [loader.micro_batch(row_ids) for row_ids in plan[step]]
        # The Trainer too divides by the labels of the whole step (transformers' own loss counts
        # the labels behind the first position, as ours does).
        num_tokens = sum(batch.num_tokens for batch in batches)
        loss_sum = 0.0
        for batch in batches:
            loss = model(**padded(batch), num_items_in_batch=num_tokens).loss
            loss.backward()
            loss_sum += loss.item()
        torch.nn.utils.clip_grad_norm_(trained, train.gradient_clipping_threshold)
        optimizer.param_groups[0]["lr"] = schedule.lr_at(step)
        optimizer.step()
        optimizer.zero_grad()
        return loss_sum

    yield take_step


def padded(batch) -> dict[str, torch.Tensor]:
    """The rows of a micro-batch padded at the right, as a data collator makes them."""
    pad = partial(torch.nn.utils.rnn.pad_sequence, batch_first=True)
    return {
        "input_ids": pad(batch.input_ids.split(batch.lengths)),
        "labels": pad(batch.labels.split(batch.lengths), padding_value=-100),
        "attention_mask": pad([torch.ones(n, dtype=torch.int64) for n in batch.lengths]),
    }


def steps_of(loader: Loader, schedule: Schedule) -> list:
    """The micro-batches of every step of the run, as row ids."""
    epochs = range(len(schedule.epoch_ends))
    return [step for epoch in epochs for step in loader.step_plan(epoch)]


def peak_mib() -> float:
    """Highest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())
