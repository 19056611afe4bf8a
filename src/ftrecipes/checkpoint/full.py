"""Save a whole fine-tuned model, and prove that loading it gives what was trained."""

from pathlib import Path

from transformers import PreTrainedModel

from ftrecipes.checkpoint.verify import compare


def save_full(model: PreTrainedModel, folder: Path) -> None:
    """Write safetensors shards, config.json and generation_config.json into `folder`.

    The parameters keep the dtype they were trained in (float32 masters stay float32). Rank 0 only.
    """
    model.save_pretrained(str(folder))


def verify_full(model: PreTrainedModel, folder: Path) -> None:
    """Load `folder` on the CPU as a user would and compare every tensor with the live model.

    Loading is compared rather than the files, because transformers renames and splits some tensors
    (experts) when it writes. Needs the memory of one more copy of the model. Raises CheckpointError
    naming the first differences.
    """
    loaded = type(model).from_pretrained(str(folder), dtype=model.dtype)
    live = model.state_dict()
    compare(loaded.state_dict(), trained=live, known=live)
