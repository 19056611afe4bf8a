"""Models in .bin or .gguf files: converted once into safetensors files, in the user's cache folder.

Only safetensors files can be read by slices. What was converted is known by the identity of the
files it was made of (paths, sizes, times), so that it is never out of date.
"""

import hashlib
import json
import os
import pickle
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from transformers import GgufConfig
from transformers.quantizers import AutoHfQuantizer
from transformers.utils import WEIGHTS_INDEX_NAME, WEIGHTS_NAME, cached_file
from transformers.utils.hub import get_checkpoint_shard_files

from ftrecipes.config.errors import ModelError
from ftrecipes.config.precision import Precision
from ftrecipes.model.donor import donor_of
from ftrecipes.model.load import check_complete
from ftrecipes.model.resolve import ModelSource, loading
from ftrecipes.model.weight_files import safetensors_files
from ftrecipes.runtime import log
from ftrecipes.runtime.user_cache import user_cache

_FILE_BYTES = 2**29  # of one converted file: about what is held in memory


def weight_paths(source: ModelSource, precision: Precision) -> list[str]:
    """The model's safetensors files: its own (of a hub id: fetched), or converted ones.

    Where several processes share a machine, let one of them come first. Raises ModelError when
    there are no weights, or they can not be read.
    """
    own = safetensors_files(source)
    return own or sorted(map(str, converted(source, precision).glob("*.safetensors")))


def converted(source: ModelSource, precision: Precision) -> Path:
    """The folder with the safetensors files of a .bin or .gguf model, made when it is not there.

    It appears whole or not at all, however many processes make it. Raises ModelError when the files
    can not be read, or when there is no place for it.
    """
    paths = _gguf_or_bin(source)
    cache = user_cache()
    if cache is None:
        raise ModelError(
            f"{source.name} has to be converted to safetensors, and there is no cache folder.\n"
            "  do: set XDG_CACHE_HOME, or convert it once: load it with transformers and save it"
        )
    folder = cache / "weights" / _identity(paths, precision)
    if folder.is_dir():
        return folder
    log.info(f"{source.name} is converted once to safetensors files: {folder}")
    gguf = source.gguf_file is not None
    weights = _of_gguf(source, paths[0], precision) if gguf else _of_bin(paths)
    try:
        _write(weights, folder)
    except (OSError, SafetensorError) as error:
        if not folder.is_dir():  # unless another process was first
            raise ModelError(
                f"{source.name} can not be converted to safetensors files in {folder}.\n"
                f"  got: {error}\n  do: make room there, or set XDG_CACHE_HOME to another place"
            ) from error
    return folder


def _gguf_or_bin(source: ModelSource) -> list[str]:
    if source.gguf_file is not None:
        return [str(Path(source.path) / source.gguf_file)]
    with loading(source.name):
        for name in (WEIGHTS_NAME, WEIGHTS_INDEX_NAME):
            path = cached_file(source.path, name, _raise_exceptions_for_missing_entries=False)
            if path is not None:
                index = path.endswith(".index.json")
                return get_checkpoint_shard_files(source.path, path)[0] if index else [path]
    raise ModelError(
        f"{source.name} holds no weights.\n  expected: .safetensors or .bin files\n"
        "  do: give a folder that save_pretrained wrote, or that was downloaded whole"
    )


def _identity(paths: Iterable[str], precision: Precision) -> str:
    files = [(path, os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in paths]
    parts = [files, precision.base, version("transformers")]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _of_bin(paths: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
    for path in paths:
        try:
            # files of torch before 1.6 can not be mapped
            state = torch.load(
                path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
            )
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise ModelError(
                f"The weight file {path} can not be read.\n  got: {error}\n"
                "  do: check that it is complete; download it again"
            ) from error
        yield from ((name, value) for name, value in state.items() if isinstance(value, Tensor))


def _of_gguf(source: ModelSource, path: str, precision: Precision) -> Iterator[tuple[str, Tensor]]:
    """Weights by the model's own names, one conversion in memory at a time."""
    dtype = getattr(torch, precision.base)
    with loading(source.name):
        quantizer = AutoHfQuantizer.from_config(
            GgufConfig(dequantize=True, gguf_file=path), pre_quantized=True
        )
        quantizer.read_header(path)
        quantizer.update_dtype(dtype)
        donor = donor_of(source, dtype, quantizer=quantizer)
        state = quantizer.get_state_dict(path, donor.model)
        tasks, unexpected = donor.tasks(state)
        check_complete(source, donor.report(unexpected=unexpected))
        for task in tasks:
            if task.converter is None:
                yield task.target, state[task.key][...]
            else:
                cpu = torch.device("cpu")
                yield from donor.convert(task, state.__getitem__, device=cpu).items()


def _write(weights: Iterable[tuple[str, Tensor]], folder: Path) -> None:
    """The folder of all weights, moved to its place when it is whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent, suffix=".part"))
    try:
        for number, held in enumerate(_portions(weights)):
            save_file(held, unfinished / f"{number:05}.safetensors")
        os.rename(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _portions(weights: Iterable[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    """Weights of _FILE_BYTES together; a larger one is a portion of its own."""
    held: dict[str, Tensor] = {}
    for name, value in weights:
        if held and sum(part.nbytes for part in held.values()) + value.nbytes > _FILE_BYTES:
            yield held
            held = {}
        # a copy: safetensors takes no weights that share memory
        held[name] = value.clone(memory_format=torch.contiguous_format)
    yield held
