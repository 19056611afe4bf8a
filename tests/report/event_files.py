"""Reads the TensorBoard event files of a run folder with TensorBoard's own reader."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray


def open_events(folder: Path) -> EventAccumulator:
    """Every event of the only run in the folder; by default the reader keeps ten a curve."""
    (place,) = (folder / "tensorboard").iterdir()
    return EventAccumulator(str(place), size_guidance={"tensors": 0}).Reload()


def curves(events: EventAccumulator) -> dict[int, dict[str, float]]:
    """Step -> name -> number."""
    found: dict[int, dict[str, float]] = {}
    for tag in events.Tags()["tensors"]:
        if not tag.startswith(("settings", "samples")):
            for event in events.Tensors(tag):
                found.setdefault(event.step, {})[tag] = make_ndarray(event.tensor_proto).item()
    return found


def text(events: EventAccumulator, name: str) -> str:
    """The first text of that name."""
    proto = events.Tensors(f"{name}/text_summary")[0].tensor_proto
    return make_ndarray(proto).item().decode()
