"""Checks of what ranks and machines agree on; `apart`, each rank plays a machine of its own."""

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from ftrecipes.config.errors import ConfigError, PeerError
from ftrecipes.runtime.collectives import (
    barrier,
    concatenate_parts,
    first_says,
    gather_objects,
    sum_floats,
)
from ftrecipes.runtime.nodes import check_same, check_shared_folder, first_on_machine
from ftrecipes.runtime.world import World

CPU = torch.device("cpu")


class CountedBeats:
    """A watch that counts."""

    def __init__(self):
        self.beats = 0

    def phase(self, text):
        pass

    def beat(self):
        self.beats += 1

    def failed(self, error):
        pass


def world(*, apart: bool, watch=None) -> World:
    """This rank's world: all on one machine, or, `apart`, one machine for each rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.TCPStore(
        *(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])),
        is_master=False,
        timeout=timedelta(seconds=30),
    )
    place = (0, 1, f"m{rank}", f"host{rank}") if apart else (rank, size, "m0", "host0")
    local_rank, local_size, machine, host = place
    return World(
        *(rank, size, local_rank, CPU, local_size, machine, host),
        store=dist.PrefixStore(f"apart{apart}", store),
        watch=watch or CountedBeats(),
    )


def check_sums_are_those_of_all_ranks(folder):
    w = world(apart=False)
    # 1e16 + 1 is lost in float32, and in float64 only the last bit of it.
    values = [1.0, float(w.rank), 2.0**52 if w.rank == 0 else 1.0]
    ranks = range(w.size)
    assert sum_floats(values, w) == [w.size, sum(ranks), 2.0**52 + w.size - 1]
    assert sum_floats([], w) == []


def check_every_rank_gets_what_each_gave(folder):
    w = world(apart=False)
    assert gather_objects({"rank": w.rank}, w) == [{"rank": rank} for rank in range(w.size)]
    assert first_says(f"rank {w.rank}", w) == "rank 0"


def check_a_barrier_waits_for_the_last_rank(folder):
    w = world(apart=False)
    late = Path(folder, f"late{w.size}")
    if w.rank == w.size - 1:
        time.sleep(0.3)
        late.write_text("here")
    barrier(w)
    assert late.exists()


def check_parts_of_any_length_and_dtype_come_together(folder):
    w = world(apart=False)
    for lengths in ([3] * w.size, [w.size - rank for rank in range(w.size)], [0] * w.size):
        for dtype in (torch.float32, torch.bfloat16, torch.uint8, torch.float8_e4m3fn):
            parts = [torch.full((n,), rank + 1.0).to(dtype) for rank, n in enumerate(lengths)]
            whole = concatenate_parts(parts[w.rank], lengths, dist.group.WORLD)
            expected = torch.cat([part.float() for part in parts])
            assert whole.dtype == dtype
            assert whole.float().equal(expected)
    assert concatenate_parts(torch.ones(2), [2], None).equal(torch.ones(2))
    with pytest.raises(ValueError, match="a part of 5 elements"):
        concatenate_parts(torch.ones(5), [1] * w.size, dist.group.WORLD)


def check_the_first_of_a_machine_goes_before_its_others(folder):
    w = world(apart=False)
    mark = Path(folder, "downloaded")
    with first_on_machine(w):
        assert mark.exists() == (w.rank > 0)
        if w.rank == 0:
            time.sleep(1.3)
            mark.write_text("whole")
    assert w.watch.beats >= 1
    with first_on_machine(w):  # the second time is a time of its own
        assert (w.rank > 0) == mark.with_name("second").exists()
        mark.with_name("second").write_text("")


def check_machines_go_side_by_side_and_leave_together(folder):
    w = world(apart=True)
    with first_on_machine(w):
        Path(folder, f"machine{w.rank}").write_text("")
        deadline = time.monotonic() + 20
        while not all(Path(folder, f"machine{rank}").exists() for rank in range(w.size)):
            assert time.monotonic() < deadline, "machines wait for each other"
            time.sleep(0.02)
        time.sleep(0.3 * w.rank)
        Path(folder, f"left{w.rank}").write_text("")
    assert Path(folder, f"left{w.size - 1}").exists()


def check_a_failure_of_the_first_ends_the_others(folder):
    w = world(apart=False)
    expected, words = (ValueError, "broken") if w.rank == 0 else (PeerError, "rank 0 on host host0")
    with pytest.raises(expected, match=words):
        enter_and_fail(w, 0)


def check_a_failure_on_another_machine_ends_all(folder):
    w = world(apart=True)
    last = w.size - 1
    with pytest.raises(ValueError if w.rank == last else PeerError, match="broken"):
        enter_and_fail(w, last)


def enter_and_fail(world: World, rank: int) -> None:
    """Fail on one rank; when that is the first of the machine, no other gets in."""
    with first_on_machine(world):
        if world.rank == rank:
            raise ValueError("broken")
        assert rank > 0


def check_equal_values_pass(folder):
    settings = {"lr": 0.1, "fsdp": {"cpu_offload": False}, "wandb": None}
    check_same(world(apart=True), settings=settings, model_fingerprint="abc")


def check_a_difference_is_told_with_ranks_and_hosts(folder):
    w = world(apart=True)
    last = w.size - 1
    settings = {"lr": 0.1, "fsdp": {"cpu_offload": w.rank == last}}
    versions = {"torch": "2.13.0"} | ({"peft": "0.21.2"} if w.rank == 0 else {})
    with pytest.raises(ConfigError) as caught:
        check_same(w, settings=settings, versions=versions, model_fingerprint="abc")
    others = "rank 0 (host0)" if w.size == 2 else "ranks 0, 1 (host0, host1)"
    without = "rank 1 (host1)" if w.size == 2 else "ranks 1, 2 (host1, host2)"
    told = str(caught.value)
    offload = f"--fsdp.cpu_offload: false on {others}; true on rank {last} (host{last})\n"
    assert offload in told
    assert f'versions peft: "0.21.2" on rank 0 (host0); nothing on {without}\n' in told
    assert "lr" not in told
    assert "model fingerprint" not in told


def check_many_differences_are_cut(folder):
    w = world(apart=True)
    with pytest.raises(ConfigError, match="and 5 more"):
        check_same(w, settings={f"flag{i}": w.rank for i in range(15)})


def check_a_folder_that_all_see_passes_and_stays_clean(folder):
    shared = Path(folder, "output")
    shared.mkdir(exist_ok=True)
    dist.barrier()
    check_shared_folder(world(apart=True), shared)
    dist.barrier()
    assert list(shared.iterdir()) == []


def check_a_folder_of_one_machine_is_refused(folder):
    w = world(apart=True)
    own = Path(folder, f"output{w.rank}")
    own.mkdir()
    blind = "rank 1 (host1)" if w.size == 2 else "ranks 1, 2 (host1, host2)"
    with pytest.raises(ConfigError) as caught:
        check_shared_folder(w, own, seconds=0.2)
    assert f"rank 0 (host0) wrote there is not seen by {blind}" in str(caught.value)
    assert list(own.iterdir()) == []


def check_a_folder_that_rank_0_can_not_write_is_refused(folder):
    with pytest.raises(ConfigError, match=r"No such file or directory on rank 0 \(host0\)"):
        check_shared_folder(world(apart=True), Path(folder, "nowhere"))


def check_one_machine_is_not_asked(folder):
    check_shared_folder(world(apart=False), Path("/nowhere"))
