"""Ways to checkpoint a tiny model, and how often each of its parts then computes in one step.

What a way makes of a model is the project's; what must come of it is written here by name, part by
part, and knows nothing of roles, targets or wrappers.
"""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from ftrecipes.config.schema import RunConfig, TrainConfig
from ftrecipes.config.sections import ActivationCheckpointingConfig
from ftrecipes.config.targets import read_target
from ftrecipes.model.module_names import canonical_name
from ftrecipes.train.recomputing import recompute_as_asked

# model_type -> where its blocks are, and the names of their attention, their mlp and their norms
_LLAMA = ("model.layers", "self_attn", "mlp", ("input_layernorm", "post_attention_layernorm"))
_PARTS = {
    **dict.fromkeys(["llama", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe"], _LLAMA),
    "gpt2": ("transformer.h", "attn", "mlp", ("ln_1", "ln_2")),
}
EVERYTHING = ("block", "attention", "mlp", "norm")


@dataclass(frozen=True)
class Way:
    """How a model is checkpointed. `twice`: block -> what of it computes a second time."""

    twice: dict[int, Sequence[str]]
    settings: ActivationCheckpointingConfig

    def __call__(self, model: nn.Module) -> None:
        """Checkpoint the model, which has its adapters already and is not sharded yet."""
        config = RunConfig(TrainConfig(model_name="tiny"), activation_checkpointing=self.settings)
        recompute_as_asked(config, model, torch.device("cpu"))


def _way(twice: dict[int, Sequence[str]], method: str = "full", *, target=None, **settings) -> Way:
    target = None if target is None else read_target(target)
    return Way(twice, ActivationCheckpointingConfig(method, target, **settings))


# All models here have two blocks.
_BOTH = {0: EVERYTHING, 1: EVERYTHING}
_SUBLAYERS = {0: ("attention",), 1: ("attention", "mlp")}
WAYS = {
    "full": _way(_BOTH),
    "sublayers": _way(_SUBLAYERS, target={"attention": "all", "mlp": [-1]}),
    "norm": _way({0: ("norm",), 1: ("norm",)}, target="norm"),
    "every second block": _way({0: EVERYTHING}, every_n=2),
    "selective": _way(_BOTH, "selective"),
    "selective mlp": _way({0: ("mlp",)}, "selective", target={"mlp": "first-1"}),
    "offload": _way(_BOTH, offload=True),
}


@contextmanager
def counted_forwards(model: nn.Module) -> Iterator[Counter]:
    """How often each part of each block, (block, kind of part, name), is entered meanwhile.

    Counted at the modules of transformers themselves, whatever is around them.
    """
    counts, handles = Counter(), []
    for key, module in _parts(model).items():
        hook = partial(_count, counts, key)
        handles.append(module.register_forward_pre_hook(hook))
    yield counts
    for handle in handles:
        handle.remove()


def _count(counts: Counter, key: Hashable, *_: object) -> None:
    counts[key] += 1


def expected_forwards(model: nn.Module, way: Way | None, *, of: int) -> dict[tuple, int]:
    """What they must be after `of` forwards of the model, each followed by its backward."""
    twice = {} if way is None else way.twice
    expected = {
        (block, kind, name): of * (2 if kind in twice.get(block, ()) else 1)
        for block, kind, name in _parts(model)
    }
    trained_below = model.get_input_embeddings().weight.requires_grad
    if "block" not in twice.get(0, ()) and not trained_below:
        # Nothing goes back through the first norm of all, which is not computed again then.
        first = next(key for key in expected if key[:2] == (0, "norm"))
        expected[first] = of
    return expected


def _parts(model: nn.Module) -> dict[tuple[int, str, str], nn.Module]:
    """The modules of transformers, which are inside of the wrappers."""
    inner = {canonical_name(f"{n}."): m for n, m in model.named_modules()}  # the last one wins
    place, attention, mlp, norms = _PARTS[model.config.model_type]
    parts = {}
    for name, module in inner.items():
        name = name.removeprefix("base_model.model.").removesuffix(".")
        block, _, rest = name.removeprefix(f"{place}.").partition(".")
        kinds = {"": "block", attention: "attention", mlp: "mlp"} | dict.fromkeys(norms, "norm")
        if name.startswith(f"{place}.") and rest in kinds:
            parts[int(block), kinds[rest], rest] = module
    assert len(parts) == 2 * 5
    return parts
