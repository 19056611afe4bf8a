"""The decoder blocks of a model, and how those at the bottom are frozen."""

from torch import nn
from transformers import PreTrainedModel

from ftrecipes.config.errors import ModelError
from ftrecipes.model.module_names import beside_decoder


def find_blocks(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder blocks, from the bottom: the outermost list of as many as the config says.

    The list of a part that sees or hears, beside the text decoder, is another one. Raises
    ModelError, naming the lists there are, when none is as long.
    """
    return _find(model)[1]


def freeze_bottom(model: PreTrainedModel, count: int) -> None:
    """Freeze the input embeddings and the first `count` decoder blocks.

    What stands before the blocks is frozen too (position embeddings, a norm of the embeddings), so
    that no gradient is computed below the first trained block. Embeddings that are tied to the
    head stay trained, and the gradient then goes down to them. Raises ModelError when there are
    fewer blocks.
    """
    path, blocks = _find(model)
    if count > len(blocks):
        raise ModelError(
            f"--num_freeze_layers {count}: {type(model).__name__} has {len(blocks)} blocks.\n"
            f"  expected: at most {len(blocks)}\n  do: freeze fewer"
        )
    parent = model.get_submodule(path.rpartition(".")[0])
    head = model.get_output_embeddings()
    kept = {id(parameter) for parameter in head.parameters()} if head is not None else set()
    below = [model.get_input_embeddings(), *blocks[:count]]
    for name, module in parent.named_children():
        if module is blocks:
            break
        if "final" not in name and "out" not in name:  # OPT names what follows the blocks first
            below.append(module)
    for module in below:
        for parameter in module.parameters():
            if id(parameter) not in kept:
                parameter.requires_grad_(False)


def _find(model: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """(name in the model, list)."""
    try:
        length = model.config.get_text_config().num_hidden_layers  # a property in some configs
    except AttributeError:
        length = 0
    beside = beside_decoder(model)
    lists = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and not name.startswith(beside)
    }
    fitting = [name for name, modules in lists.items() if len(modules) == length]
    if not fitting or not length:
        found = ", ".join(f"{name} ({len(modules)})" for name, modules in lists.items())
        raise ModelError(
            f"The decoder blocks of {type(model).__name__} can not be told.\n"
            f"  got: {found or 'no list of modules'}\n"
            f"  expected: as many modules as num_hidden_layers in its config says ({length})\n"
            "  do: leave --freeze_layers out"
        )
    name = min(fitting, key=lambda name: name.count("."))
    return name, lists[name]
