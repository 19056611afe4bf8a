"""What is trained: adapters on a frozen base, or every parameter."""

from collections.abc import Iterator, Sequence

import peft
import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ftrecipes.config.errors import ConfigError, ModelError
from ftrecipes.config.precision import Precision
from ftrecipes.config.schema import RunConfig
from ftrecipes.model.continued import check_new_tokens, continued_config, load_weights
from ftrecipes.model.experts import adapt_packed
from ftrecipes.model.methods import peft_config, start_from_text
from ftrecipes.model.module_names import canonical_name, linear_names
from ftrecipes.model.packed import weight_counts
from ftrecipes.model.rewritten import is_rewriting, rewriting_adapter
from ftrecipes.model.units import freeze_bottom
from ftrecipes.model.vocabulary import vocabulary_size

# Words of PEFT 0.21 that a person who knows only flags can do nothing with, and what to do.
_HINTS = {
    "ParamWrapper": "name linear layers in --lora.target_modules (all-linear takes the experts of "
    "some models too, and PEFT has neither dropout nor DoRA for these), or leave that flag out",
    "trainable_token_indices": "leave embedding and head out of --lora.target_modules (the rows of "
    "new tokens are trained anyway), or train both whole by --lora.modules_to_save",
    "num_attention_heads": "use another --peft_method, such as lora",
}


def add_adapters(
    model: PreTrainedModel,
    config: RunConfig,
    precision: Precision,
    *,
    new_token_ids: Sequence[int] = (),
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> peft.PeftModelForCausalLM:
    """The model with one adapter, trainable in `precision.trainable`, on a frozen base.

    The adapter is a new one of `--peft_method`, or that of `--from_peft_checkpoint` with its
    weights. On a model without weights, inside `torch.device("meta")`, it has none either: see
    `initialise_adapter`. The embedding rows of `new_token_ids` are trained with it. A prompt that
    starts from a text needs the tokenizer. Raises ModelError for names that match nothing, for what
    the method or the model can not do, and for what PEFT refuses.
    """
    folder = config.train.from_peft_checkpoint
    linear = ", ".join(linear_names(model))  # PEFT may fail halfway through the modules
    try:
        if folder is None:
            settings = peft_config(model, config, new_token_ids=new_token_ids)
        else:
            settings = continued_config(
                folder,
                model_name=config.train.model_name,
                vocabulary=_known_ids(model, tokenizer),
            )
            check_new_tokens(folder, settings, new_token_ids, model=model)
        add = rewriting_adapter if is_rewriting(settings) else peft.get_peft_model
        adapted = add(model, settings)
        adapt_packed(adapted)
        _store_trainable(adapted, precision)
        if folder is not None:
            load_weights(adapted, folder)
        elif config.train.peft_method == "prompt" and config.prompt.init_text is not None:
            start_from_text(adapted, config.prompt.init_text, tokenizer)
    except (torch.OutOfMemoryError, MemoryError, ModelError, ConfigError):
        raise
    except Exception as error:
        flags = "--from_peft_checkpoint" if folder else f"the --{config.train.peft_method} flags"
        hint = next((do for words, do in _HINTS.items() if words in str(error)), f"change {flags}")
        raise ModelError(
            f"The adapters can not be added to {type(model).__name__}.\n  got: {error}\n"
            f"  do: {hint}; linear layers here: {linear}"
        ) from error
    return adapted


def _known_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> int:
    """Ids that have an embedding row, and a name in the tokenizer that is saved with them."""
    rows = model.get_input_embeddings().weight.shape[0]
    return rows if tokenizer is None else min(rows, vocabulary_size(tokenizer))


def rehearse_adapters(
    sketch: PreTrainedModel,
    config: RunConfig,
    precision: Precision,
    *,
    new_token_ids: Sequence[int] = (),
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> None:
    """Raise what `add_adapters` would raise, on a model without weights (see `sketch_model`)."""
    with torch.device("meta"):
        add_adapters(sketch, config, precision, new_token_ids=new_token_ids, tokenizer=tokenizer)


def train_everything(
    model: PreTrainedModel, precision: Precision, *, frozen_blocks: int = 0
) -> PreTrainedModel:
    """The model with every parameter trainable, in `precision.trainable`.

    With `frozen_blocks`, all but the embeddings and that many blocks from the bottom. Raises
    ModelError when the model has fewer.
    """
    model.requires_grad_(True)
    if frozen_blocks:
        freeze_bottom(model, frozen_blocks)
    _store_trainable(model, precision)
    return model


def trainable_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """(canonical name, parameter) of all that is trained."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            yield canonical_name(name), parameter


def trained_share(model: nn.Module) -> str:
    """How many of the parameters are trained, for the log; packed weights count in full."""
    trained = sum(parameter.numel() for _, parameter in trainable_parameters(model))
    total = sum(weight_counts(model).values())
    return f"{trained:,} of {total:,} parameters are trained ({trained / total:.2%})"


def _store_trainable(model: nn.Module, precision: Precision) -> None:
    dtype = getattr(torch, precision.trainable)
    for _, parameter in trainable_parameters(model):
        parameter.data = parameter.data.to(dtype)
