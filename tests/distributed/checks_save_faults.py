"""What goes wrong on one rank while a run is recorded and saved is raised on all of them."""

import json
from contextlib import nullcontext
from types import SimpleNamespace
from unittest import mock

import pytest
from safetensors.torch import load_file, save_file

from ftrecipes.checkpoint import adapter
from ftrecipes.checkpoint.adapter import WEIGHTS
from ftrecipes.checkpoint.record import record_run
from ftrecipes.checkpoint.result import Result, rehearse_saving
from ftrecipes.checkpoint.together import all_do, first_does
from ftrecipes.config.errors import CheckpointError, ConfigError, DataError, PeerError
from ftrecipes.config.run_files import LIVE, STAGING
from ftrecipes.config.schema import RunConfig, TrainConfig
from ftrecipes.runtime.collectives import barrier, gather_objects
from tests.checkpoint.test_record import room_for
from tests.distributed.saving import errors, shared
from tests.distributed.sharded import Case, cut
from tests.distributed.worlds import this_world
from tests.tiny_tokenizers import build_tokenizer

STATE = {"step": 3, "tokens": 30, "first_eval_loss": 2.0, "last_eval_loss": 1.0}


def result_of(*, use_peft: bool) -> Result:
    cutting = cut(Case() if use_peft else Case(peft=()))
    config = RunConfig(train=TrainConfig(use_peft=use_peft))
    tokenizer = build_tokenizer("chatml")
    return Result(
        *(config, cutting.model, tokenizer, "org/base"), engine=cutting.engine, world=this_world()
    )


def open_record(folder):
    return record_run(folder, settings={"lr": 1.0}, origins={}, world=this_world())


def full_disk():
    """On rank 0 no file grows; elsewhere nothing is different."""
    return room_for(10) if this_world().rank == 0 else nullcontext()


def check_the_first_does_for_all(folder):
    world = this_world()
    done = first_does(lambda: f"of rank {world.rank}", world)
    assert done == "of rank 0"

    def fail():
        raise OSError(28, "No space left")

    with pytest.raises(OSError if world.rank == 0 else CheckpointError, match="No space left"):
        first_does(fail, world)


def check_an_error_of_any_rank_is_that_of_all(folder):
    world = this_world()

    def fail_on(*ranks):
        if world.rank in ranks:
            raise DataError(f"bad row at {world.rank}")

    with pytest.raises(DataError, match=r"^rank 1 on host host1: bad row at 1$"):
        all_do(lambda: fail_on(1), world)
    with pytest.raises(DataError, match=r"^bad row at 0$"):
        all_do(lambda: fail_on(0, 1), world)


def check_the_end_of_another_rank_is_not_waited_for(folder):
    """The rank that raises it sends nothing more: the next collective is in step all the same."""
    world = this_world()

    def end():
        raise PeerError("rank 1 died")

    with pytest.raises(PeerError):
        all_do(end, world)
    assert gather_objects(world.rank, world) == [0, 1]


def check_a_result_is_one_set_of_files(folder):
    """Cases X03 and A13: weights, their settings, tokenizer and card, by one rank."""
    for use_peft in (True, False):
        out, result = shared(folder, f"result-{use_peft}"), result_of(use_peft=use_peft)
        rehearse_saving(result, out, keeps_best=True)
        assert list(out.iterdir()) == []
        barrier(result.world)
        result.save_best(out, state=STATE)
        assert result.save(out, state=STATE, keep_best=True)
        names = {path.name for path in out.iterdir()}
        kind = (
            {WEIGHTS, "adapter_config.json"} if use_peft else {"model.safetensors", "config.json"}
        )
        assert names >= kind | {"tokenizer.json", "chat_template.jinja", "README.md", "best"}
        assert names - {"best"} == {path.name for path in (out / "best").iterdir()}
        assert "| processes | 2 |" in (out / "README.md").read_text()


def assert_the_earlier_result_stays(out, result):
    result.save(out, state=STATE)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    barrier(result.world)  # the next save begins with a folder of its own
    with full_disk():
        (text,) = errors(result.world, lambda: result.save(out, state=STATE))
    assert "File too large" in text
    assert before == {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    barrier(result.world)
    assert result.save(out, state=STATE)
    assert not list(out.glob(f"{STAGING}*"))


def check_a_result_that_can_not_be_written_leaves_the_earlier_one(folder):
    assert_the_earlier_result_stays(shared(folder, "disk-adapter"), result_of(use_peft=True))
    assert_the_earlier_result_stays(shared(folder, "disk-full"), result_of(use_peft=False))


def check_the_best_that_can_not_be_written_is_a_warning(folder):
    out, result = shared(folder, "best"), result_of(use_peft=True)
    with full_disk():
        result.save_best(out, state=STATE)
    barrier(result.world)
    assert list(out.iterdir()) == []
    barrier(result.world)
    result.save_best(out, state=STATE)
    assert (out / "best" / WEIGHTS).exists()


def check_a_writer_that_changes_a_tensor_is_found_on_all_ranks(folder):
    out, result = shared(folder, "lying"), result_of(use_peft=True)

    def lying(tensors, path, **settings):
        save_file(tensors | {min(tensors): tensors[min(tensors)] + 1}, path, **settings)

    with mock.patch.object(adapter, "save_file", lying):
        (text,) = errors(result.world, lambda: result.save(out, state=STATE))
    assert "other values in the file than in the model" in text
    (kept,) = out.iterdir()
    assert kept.name.startswith(STAGING)
    assert load_file(kept / WEIGHTS)


def check_a_disk_that_is_too_full_for_rank_0_is_found_by_all(folder):
    out, result = shared(folder, "rehearsal"), result_of(use_peft=False)
    free = 0 if result.world.rank == 0 else 2**40
    with mock.patch("shutil.disk_usage", return_value=SimpleNamespace(free=free)):
        (text,) = errors(result.world, lambda: rehearse_saving(result, out, keeps_best=False))
    whole = sum(parameter.numel() for parameter in Case(peft=()).build().parameters()) * 4
    assert f"expected: {whole / 1e6:.1f} MB" in text  # of all ranks, not of this one's rows


def check_a_run_has_one_record(folder):
    out = folder / "run"
    with open_record(out) as record:
        assert record.folder == out
        record.add(train_fingerprint="abc")
        content = json.loads((out / "run.json").read_text())
        assert content["train_fingerprint"] == "abc"
        assert content["world"] == {"size": 2, "device": "cpu", "hosts": ["host0", "host1"]}
        barrier(this_world())
        with pytest.raises(ConfigError, match="another run is writing there"), open_record(out):
            pytest.fail("the folder is held")
    assert json.loads((out / "run.json").read_text())["status"] == "finished"
    barrier(this_world())
    if this_world().rank == 0:
        (out / WEIGHTS).touch()
    with open_record(out) as record:
        assert record.folder == out / LIVE
        assert (out / LIVE / "run.json").exists()
        barrier(this_world())
        record.settle()
        assert record.folder == out
    assert not (out / LIVE).exists()


def check_a_record_that_can_not_be_written_ends_all_ranks(folder):
    out, world = folder / "recorded", this_world()
    with open_record(out) as record, full_disk():
        (text,) = errors(world, lambda: record.add(more="x" * 1000))
    assert "run.json could not be written" in text
    if world.rank == 0:
        (folder / "file").write_text("")
    barrier(world)
    (text,) = errors(world, lambda: open_record(folder / "file" / "run").__enter__())
    assert "the folder can not be written" in text


def check_a_rank_that_fails_waits_for_nobody(folder):
    """Only rank 0 keeps a traceback; another's error comes to it by the watch."""
    out, world = folder / "failed", this_world()
    with pytest.raises(DataError), open_record(out):
        raise DataError(f"bad row at {world.rank}")
    barrier(world)
    content = json.loads((out / "run.json").read_text())
    assert (content["status"], content["error"]) == ("failed", "bad row at 0")
    assert "bad row at 0" in (out / "error.txt").read_text()
