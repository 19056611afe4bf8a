"""Names and values whose implementation comes later; until then they are refused with "not yet".

A row goes when its feature comes.
"""

from ftrecipes.config.legacy import Fate

LATER_SECTIONS = {
    "resume": "going on from a checkpoint",
    "saving": "checkpoints during training",
}
# name -> what it is for, and the value that asks for nothing
LATER_FLAGS = {
    "compile": ("compiled blocks", "false"),
    "on_nonfinite": ("going on after a loss that is not finite", "stop"),
    "schedule_steps": ("a schedule longer than the run", ""),
    "time_limit_minutes": ("stopping before a time limit", ""),
}
LATER_VALUES = {
    "lora.init_lora_weights": ("eva", "corda", "loftq"),
}
LATER_DATASETS = ("llamaguard_toxicchat_dataset",)


def later_fate(name: str) -> Fate | None:
    """The fate of a flag of ours that is planned; None when it is not."""
    section = name.partition(".")[0]
    if name in LATER_FLAGS:
        why, neutral = LATER_FLAGS[name]
        return Fate("later", "", why=why, neutral=neutral)
    if section in LATER_SECTIONS:
        return Fate("later", "", why=LATER_SECTIONS[section])
    return None
