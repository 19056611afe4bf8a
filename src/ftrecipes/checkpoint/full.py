"""Save a whole fine-tuned model tensor by tensor, and prove that the files are what was trained.

No rank ever holds the whole model: what was gathered goes to a file before the next is.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, logging

from ftrecipes.checkpoint.layout import Layout, Piece, lay_out, live_tensors, own_class, revert
from ftrecipes.checkpoint.publish import flush
from ftrecipes.checkpoint.together import all_do, first_does
from ftrecipes.checkpoint.verify import InFile, compare, refuse
from ftrecipes.parallel.engine import Engine
from ftrecipes.runtime.world import World

FILE_BYTES = 2 * 2**30  # rank 0 holds as much before it writes


def save_full(
    model: PreTrainedModel,
    folder: Path,
    *,
    engine: Engine,
    world: World,
    file_bytes: int = FILE_BYTES,
) -> None:
    """Write safetensors files, config.json and generation_config.json into `folder`.

    The names are transformers' own, the dtypes those that were trained in (float32 masters stay
    float32). Called by all ranks, which gather one tensor, or one block of experts, at a time; rank
    0 writes, and its failure is raised on all.
    """
    engine.settle()
    live = live_tensors(model)
    layout = lay_out(model, live, file_bytes=file_bytes)
    first_does(lambda: _write_settings(model, folder, layout), world)
    held: dict[str, Tensor | None] = {}  # name in a file -> tensor, on rank 0
    files = list(layout.files.items())
    for piece in layout.pieces:
        # Only `held` refers to what was gathered, so that it goes with its file.
        held |= _stored(model, piece, live, engine=engine, world=world)
        # The ranks agree once a file, and not for each tensor.
        while files and held.keys() >= set(files[0][1]):
            file, names = files.pop(0)
            first_does(partial(_write, folder / file, held, names), world)
            held = {name: tensor for name, tensor in held.items() if name not in names}


def rehearse_full(model: PreTrainedModel, folder: Path) -> None:
    """Raise CheckpointError when transformers could not load what `save_full` would write.

    Writes the small files into `folder`. Rank 0 only.
    """
    layout = lay_out(model, live_tensors(model), file_bytes=FILE_BYTES)
    _write_settings(model, folder, layout)
    _check_loads(model, folder, layout.ghosts)


def verify_full(
    model: PreTrainedModel,
    folder: Path,
    *,
    engine: Engine,
    world: World,
    file_bytes: int = FILE_BYTES,
) -> None:
    """Compare every tensor in `folder` with the live model, and let transformers look for its own.

    Called by all ranks: each compares the rows that it holds. What transformers converts is
    gathered again, and compared by rank 0. Raises CheckpointError, on all ranks, naming the first
    differences.
    """
    engine.settle()
    live = live_tensors(model)
    layout = lay_out(model, live, file_bytes=file_bytes)
    first_does(lambda: _check_loads(model, folder, _stated(folder, layout)), world)
    known = {name: live[source] for name, source in layout.sources.items()}
    for file, names in layout.files.items():
        world.watch.beat()
        expected = {name: known[name] for name in names if name in known}
        others = set(names) - expected.keys()
        all_do(partial(_compare, folder / file, expected, others, engine), world)
    for piece in layout.pieces:
        if not piece.is_same:
            files = {folder / file: names for file, names in layout.files.items()}
            whole = _gathered(piece, live, engine=engine, world=world)
            check = partial(_compare_converted, model, files, whole, piece=piece, engine=engine)
            first_does(check, world)


def _stored(
    model: PreTrainedModel,
    piece: Piece,
    live: Mapping[str, Tensor],
    *,
    engine: Engine,
    world: World,
) -> dict[str, Tensor | None]:
    """As `_gathered`, under the names and in the form of the files."""
    whole = _gathered(piece, live, engine=engine, world=world)
    return _as_stored(model, piece, whole) if world.rank == 0 else dict.fromkeys(piece.outputs)


def _write(path: Path, held: Mapping[str, Tensor], names: Collection[str]) -> None:
    """One file, flushed now: the other ranks wait for each, and not for all at the end."""
    save_file({name: held[name] for name in names}, path, metadata={"format": "pt"})
    flush(path)


def _gathered(
    piece: Piece, live: Mapping[str, Tensor], *, engine: Engine, world: World
) -> dict[str, Tensor | None]:
    """Live name -> whole tensor on the CPU of rank 0, None on the others; called by all ranks."""
    world.watch.beat()

    def kept(whole: Tensor) -> Tensor | None:
        # Uneven shares come with padding, which the tensor would keep alive behind its last row.
        padded = whole.untyped_storage().nbytes() > whole.nbytes
        return whole.to("cpu", copy=padded) if world.rank == 0 else None

    return {name: kept(engine.gather(live[name].detach())) for name in piece.sources}


def _as_stored(
    model: PreTrainedModel, piece: Piece, whole: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The whole tensors of `piece` as they are in files."""
    if piece.is_same:
        return {name: whole[piece.sources[0]].contiguous() for name in piece.outputs}
    return {name: tensor.contiguous() for name, tensor in revert(model, whole).items()}


def _write_settings(model: PreTrainedModel, folder: Path, layout: Layout) -> None:
    """All that `save_pretrained` writes beside the weights: it is given none."""
    with _without_bars():
        own_class(model).save_pretrained(str(folder), state_dict={})
    if len(layout.files) > 1:
        text = json.dumps(_index(layout), indent=2, sort_keys=True)
        (folder / SAFE_WEIGHTS_INDEX_NAME).write_text(text + "\n", encoding="utf-8")


def _index(layout: Layout) -> dict:
    """In which file each tensor is, as the hub wants it."""
    sizes = {
        "total_parameters": sum(ghost.numel() for ghost in layout.ghosts.values()),
        "total_size": sum(ghost.nbytes for ghost in layout.ghosts.values()),
    }
    files = {name: file for file, names in layout.files.items() for name in names}
    return {"metadata": sizes, "weight_map": files}


def _stated(folder: Path, layout: Layout) -> dict[str, Tensor]:
    """Every name in the files, with a tensor on the meta device of the shape that its file states.

    Raises CheckpointError when the index says something else.
    """
    found = {}
    for file in layout.files:
        with safe_open(folder / file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  a file is no mapping
                tensor = InFile(opened.get_slice(name))
                found[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    index = folder / SAFE_WEIGHTS_INDEX_NAME
    expected = _index(layout)
    if len(layout.files) > 1 and json.loads(index.read_text("utf-8")) != expected:
        refuse([f"{index.name}: not what was written"])
    return found


def _check_loads(model: PreTrainedModel, folder: Path, stored: Mapping[str, Tensor]) -> None:
    """Whether transformers finds all that the model needs among `stored`, and nothing else.

    It goes by names and shapes, and by config.json in `folder`.
    """
    kind = type(own_class(model))
    settings = kind.config_class.from_pretrained(str(folder))
    with _without_bars():
        _, report = kind.from_pretrained(
            None,
            config=settings,
            state_dict=dict(stored),
            device_map="meta",
            output_loading_info=True,
        )
    faults = [f"{name}: trained, but not in the file" for name in sorted(report["missing_keys"])]
    faults += [
        f"{name}: in the file, but not in the model" for name in sorted(report["unexpected_keys"])
    ]
    refuse(faults)


@contextmanager
def _without_bars() -> Iterator[None]:
    """No bars of transformers, which would tell of weights where there are none."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _compare(
    path: Path, expected: Mapping[str, Tensor], others: Collection[str], engine: Engine
) -> None:
    """Compare a file with the live tensors `expected`; `others` in it are looked at elsewhere."""
    with safe_open(path, framework="pt") as file:
        names = [name for name in file.keys() if name not in others]  # noqa: SIM118  as above
        saved = {name: InFile(file.get_slice(name)) for name in names}
        compare(saved, trained=expected, known=expected, engine=engine)


def _compare_converted(
    model: PreTrainedModel,
    files: Mapping[Path, Collection[str]],
    whole: Mapping[str, Tensor],
    *,
    piece: Piece,
    engine: Engine,
) -> None:
    """Compare what became of `piece` in the files with its whole tensors. Rank 0 only."""
    expected = _as_stored(model, piece, whole)
    for path, names in files.items():
        ours = {name: expected[name] for name in names if name in expected}
        if ours:
            _compare(path, ours, set(names) - ours.keys(), engine)
