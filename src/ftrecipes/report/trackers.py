"""wandb and TensorBoard: the numbers of metrics.jsonl for people who look at them there.

`scalars` alone decides which numbers of a line they get and under which names; both get the same.
The step of every axis is the optimizer step.
"""

import textwrap
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import yaml

from ftrecipes.config.errors import ConfigError
from ftrecipes.config.parse import to_mapping
from ftrecipes.config.run_files import TENSORBOARD
from ftrecipes.config.schema import RunConfig
from ftrecipes.report.whole_file import WholeFile
from ftrecipes.runtime import log

if TYPE_CHECKING:
    import wandb

# kind of a line -> group of its numbers; what a run says once (stopped, ...) is no curve
_GROUPS = {
    "step": "train",
    "evaluation": "eval",
    "epoch": "epoch",
    "flop_count": "flop_count",
    "end": "end",
}
FINISH_SECONDS = 60.0
_NO_LOGIN = "run `wandb login`, or use --tracking.mode offline and `wandb sync` later"


class Tracker(Protocol):
    """Takes numbers and samples in the order of the steps, on rank 0."""

    name: str

    def numbers(self, values: Mapping[str, float], *, step: int) -> None:
        """Add a point to each named curve."""

    def sample(self, *, name: str, prompt: str, answer: str, step: int) -> None:
        """Show an answer of the model."""

    def close(self, *, failed: bool) -> None:
        """Hand over what is left; `failed` says how the run ended."""


def scalars(kind: str, fields: Mapping[str, object]) -> dict[str, float]:
    """The numbers of a line of metrics.jsonl by their names in the trackers: `train/loss`.

    What is not finite stays as it is; texts, nulls and the step itself are left out. The memory in
    the line of an epoch is `memory/...`.
    """
    if kind not in _GROUPS:
        return {}
    numbers = {}
    for name, value in fields.items():
        if name == "step" or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        memory = kind == "epoch" and name.startswith(("host_", "device_"))
        numbers[f"{'memory' if memory else _GROUPS[kind]}/{name}"] = value
    return numbers


def open_trackers(config: RunConfig, folder: Path, *, rank: int) -> "list[Tracker]":
    """The trackers that were asked for, writing into the run folder; none but on rank 0.

    Raises ConfigError when one can not be started.
    """
    if rank != 0:
        return []
    asked = [
        (TensorBoardTracker, config.tracking.tensorboard),
        (WandbTracker, config.tracking.wandb),
    ]
    return [Guarded(tracker(config, folder)) for tracker, is_asked in asked if is_asked]


def rehearse_trackers(config: RunConfig, *, rank: int) -> None:
    """Log in to wandb where it would send anything, asking for the key on a terminal.

    Raises ConfigError when there is no key, or for a WANDB_ variable that wandb refuses. Before
    weights are read, because that takes long.
    """
    if rank != 0 or not config.tracking.wandb:
        return
    import wandb

    try:
        mode = config.tracking.mode or wandb.setup().settings.mode
    except (wandb.Error, ValueError) as error:
        raise _no_start("wandb", error, do="mend the variables WANDB_... it names") from error
    if mode == "online":
        try:
            wandb.login(verify=False)
        except wandb.Error as error:
            raise _no_start("wandb", error, do=_NO_LOGIN) from error


class Guarded:
    """A tracker whose failure is told once and ends nothing: it is only left out from then on."""

    def __init__(self, tracker: Tracker):
        self.name = tracker.name
        self._tracker: Tracker | None = tracker

    def numbers(self, values: Mapping[str, float], *, step: int) -> None:
        """As the tracker's."""
        self._try(lambda tracker: tracker.numbers(values, step=step))

    def sample(self, *, name: str, prompt: str, answer: str, step: int) -> None:
        """As the tracker's."""
        self._try(lambda it: it.sample(name=name, prompt=prompt, answer=answer, step=step))

    def close(self, *, failed: bool) -> None:
        """As the tracker's."""
        self._try(lambda tracker: tracker.close(failed=failed))

    def _try(self, action: Callable[[Tracker], None]) -> None:
        if self._tracker is None:
            return
        try:
            action(self._tracker)
        except Exception as error:  # noqa: BLE001  whatever a tracker raises, training goes on
            self._tracker = None
            log.warning(
                f"{self.name} failed and gets nothing more: {error or type(error).__name__}. "
                "Training goes on; metrics.jsonl has every number"
            )


class TensorBoardTracker:
    """Event files in tensorboard/<start of the run>/, so that runs are told apart there."""

    name = "TensorBoard"

    def __init__(self, config: RunConfig, folder: Path):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter
        from torch.utils.tensorboard import summary

        place = folder / TENSORBOARD / f"{datetime.now():%Y%m%d-%H%M%S-%f}"
        self._event, self._summary = Event, summary
        try:
            place.mkdir(parents=True, exist_ok=True)
            # Not SummaryWriter: it writes in a thread, whose failures end as tracebacks on screen.
            self._file = WholeFile(place / f"events.out.tfevents.{int(time.time())}")
            self._records = RecordWriter(self._file)
            self._write(file_version="brain.Event:2")
            settings = yaml.safe_dump(to_mapping(config), sort_keys=False)
            self._write(step=0, summary=summary.text("settings", _as_code(settings)))
        except OSError as error:
            raise _no_start(self.name, error, do="make the folder writable") from error
        log.info(f"TensorBoard: tensorboard --logdir {folder / TENSORBOARD}")

    def numbers(self, values: Mapping[str, float], *, step: int) -> None:
        """As float64, which only the newer form of a scalar event has."""
        for name, value in values.items():
            point = self._summary.scalar(name, value, new_style=True, double_precision=True)
            self._write(step=step, summary=point)

    def sample(self, *, name: str, prompt: str, answer: str, step: int) -> None:
        """TensorBoard shows Markdown; as code, a text looks as it is."""
        text = f"prompt\n\n{_as_code(prompt)}\n\nanswer\n\n{_as_code(answer)}"
        self._write(step=step, summary=self._summary.text(name, text))

    def close(self, *, failed: bool) -> None:
        """TensorBoard keeps no status."""
        self._file.close()

    def _write(self, **event: object) -> None:
        self._records.write(self._event(wall_time=time.time(), **event).SerializeToString())


class WandbTracker:
    """A wandb run in wandb/ of the run folder; the settings of the run are its config.

    wandb stays silent, leaves the console alone, and takes neither code nor git state nor the list
    of installed packages.
    """

    name = "wandb"

    def __init__(self, config: RunConfig, folder: Path):
        import wandb

        tracking = config.tracking
        try:
            self._run = wandb.init(
                dir=str(folder),
                project=tracking.project,
                entity=tracking.entity,
                name=tracking.run_name or folder.name,
                group=tracking.group,
                job_type=tracking.job_type,
                tags=tracking.tags,
                notes=tracking.notes,
                mode=tracking.mode,
                config=to_mapping(config),
                settings=_wandb_settings(),
            )
        except (wandb.Error, OSError, ValueError) as error:
            raise _no_start(self.name, error, do=_NO_LOGIN) from error
        self._table = wandb.Table
        offline = f"offline; wandb sync {self._run.settings.sync_dir}"
        log.info(f"wandb: {offline if self._run.offline else self._run.url or 'disabled'}")

    def numbers(self, values: Mapping[str, float], *, step: int) -> None:
        """wandb gathers what comes for one step, and sends it with the next step."""
        self._run.log(dict(values), step=step)

    def sample(self, *, name: str, prompt: str, answer: str, step: int) -> None:
        """A table of one row."""
        columns = ["step", "prompt", "answer"]
        self._run.log({name: self._table(columns, [[step, prompt, answer]])}, step=step)

    def close(self, *, failed: bool) -> None:
        """Wait for the upload, but not for ever: trained weights are still to be saved."""
        self._run.finish(exit_code=1 if failed else 0)


def _wandb_settings() -> "wandb.Settings":
    import wandb

    return wandb.Settings(
        console="off",
        silent=True,
        disable_code=True,
        disable_git=True,
        save_code=False,
        x_save_requirements=False,
        reinit="create_new",  # a run that the caller has open is none of ours
        finish_timeout=FINISH_SECONDS,
        finish_timeout_raises=True,
    )


def _no_start(name: str, error: Exception, *, do: str) -> ConfigError:
    got = str(error) or type(error).__name__
    return ConfigError(f"{name} could not be started.\n  got: {got}\n  do: {do}")


def _as_code(text: str) -> str:
    """`text` as a code block of Markdown."""
    return textwrap.indent(text, "    ", lambda line: True)
