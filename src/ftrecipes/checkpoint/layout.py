"""How a whole model lies in the files of a folder: the names, and in which file each tensor is.

transformers says what tensors are called there (`core_model_loading.revert_weight_conversion`: it
splits experts, for example), asked with tensors on the meta device, which have no numbers.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.utils import SAFE_WEIGHTS_NAME

from ftrecipes.model.module_names import canonical_name


@dataclass(frozen=True)
class Piece:
    """Live tensors that are gathered together, and what becomes of them in the files."""

    sources: tuple[str, ...]  # live names
    outputs: dict[str, Tensor]  # name in a file -> on the meta device
    is_same: bool  # one source, which is the one output

    @property
    def nbytes(self) -> int:
        """Bytes in the files."""
        return sum(ghost.nbytes for ghost in self.outputs.values())


@dataclass(frozen=True)
class Layout:
    """What is in the files, in the order in which it is gathered."""

    pieces: tuple[Piece, ...]
    files: dict[str, tuple[str, ...]]  # file -> names in it

    @property
    def ghosts(self) -> dict[str, Tensor]:
        """Every name in the files, with a tensor on the meta device."""
        return {name: ghost for piece in self.pieces for name, ghost in piece.outputs.items()}

    @property
    def sources(self) -> dict[str, str]:
        """Name in a file -> live name, of what is the same in both."""
        same = (piece for piece in self.pieces if piece.is_same)
        return {name: piece.sources[0] for piece in same for name in piece.outputs}


def live_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """Parameters and persistent buffers by their canonical names; of tied ones the main one."""
    state = model.state_dict(keep_vars=True)
    names_of: dict[int, list[str]] = {}
    for name, tensor in state.items():
        names_of.setdefault(id(tensor), []).append(name)
    tied = model.all_tied_weights_keys
    kept = {
        min(names, key=lambda name: canonical_name(name) in tied) for names in names_of.values()
    }
    return {canonical_name(name): tensor for name, tensor in state.items() if name in kept}


def lay_out(model: PreTrainedModel, live: Mapping[str, Tensor], *, file_bytes: int) -> Layout:
    """The layout of `live` in files of `file_bytes` at most, but for a larger tensor, which has a
    file of its own. Local, and the same on all ranks.

    A piece is one tensor; where transformers converts tensors, those of one block. Whoever gathers
    in this order and writes each file when it is complete holds at most the tensors of one file,
    and a converted piece, as its parts are views of it.
    """
    ghosts = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        for name, tensor in live.items()
    }
    live_name = {id(ghost): name for name, ghost in ghosts.items()}
    stored = revert(model, ghosts)
    same = {live_name[id(ghost)]: name for name, ghost in stored.items() if id(ghost) in live_name}

    def pieces(unit: Callable[[str], str]) -> tuple[Piece, ...]:
        joined: dict[str, dict[str, Tensor]] = {}
        for name, ghost in ghosts.items():
            joined.setdefault(name if name in same else unit(name), {})[name] = ghost
        return tuple(
            Piece((first,), {same[first]: ghosts[first]}, is_same=True)
            if (first := next(iter(tensors))) in same
            else Piece(tuple(tensors), revert(model, tensors), is_same=False)
            for tensors in joined.values()
        )

    found = pieces(_block)
    if _shapes(found) != {name: ghost.shape for name, ghost in stored.items()}:
        # tensors of several blocks make one in the files: no model that transformers 5.24 knows
        found = pieces(lambda name: "")
    return Layout(found, _files(found, file_bytes))


def revert(model: PreTrainedModel, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Live tensors under the names, and in the form, that they have in files."""
    return revert_weight_conversion(own_class(model), dict(tensors))


def own_class(model: PreTrainedModel) -> PreTrainedModel:
    """The same model, seen as an instance of the class it was built from.

    Sharding gives it a class of its own, and transformers 5.24 goes by names and modules of
    classes to find conversions and code files.
    """
    built_from = next(kind for kind in type(model).__mro__ if not issubclass(kind, FSDPModule))
    seen = object.__new__(built_from)
    seen.__dict__.update(vars(model))
    return seen


def _block(name: str) -> str:
    """A name up to its first number: `model.layers.3.`"""
    found = re.match(r".*?\.\d+\.", name)
    return found.group() if found else ""


def _shapes(pieces: Iterable[Piece]) -> dict[str, torch.Size]:
    return {name: ghost.shape for piece in pieces for name, ghost in piece.outputs.items()}


def _files(pieces: Iterable[Piece], file_bytes: int) -> dict[str, tuple[str, ...]]:
    """File -> names in it; no piece begins in a file that it would make too large."""
    files: list[list[str]] = [[]]
    held = 0
    for piece in pieces:
        if piece.nbytes > file_bytes - held:
            held = file_bytes
        for name, ghost in piece.outputs.items():
            if files[-1] and held + ghost.nbytes > file_bytes:
                files.append([])
                held = 0
            files[-1].append(name)
            held += ghost.nbytes
    if len(files) == 1:
        return {SAFE_WEIGHTS_NAME: tuple(files[0])}
    stem, suffix = SAFE_WEIGHTS_NAME.split(".")
    return {
        f"{stem}-{number:05d}-of-{len(files):05d}.{suffix}": tuple(names)
        for number, names in enumerate(files, start=1)
    }
