"""Which process this is, and which device it takes."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from ftrecipes.config.errors import ConfigError
from ftrecipes.runtime.collectives import sum_floats
from ftrecipes.runtime.ranks import is_first, read_ranks
from ftrecipes.runtime.world import World, choose_device, open_world, start_world


@pytest.fixture
def machine(monkeypatch):
    """Set torchrun's variables and the accelerator that torch finds."""

    def setup(accelerator: str | None = None, devices: int = 4, **variables: str) -> None:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        found = None if accelerator is None else torch.device(accelerator)
        interface = SimpleNamespace(
            is_available=lambda: found is not None,
            current_accelerator=lambda: found,
            device_count=lambda: devices,
        )
        monkeypatch.setattr("ftrecipes.runtime.world.torch.accelerator", interface)

    return setup


def test_one_process_is_a_world_of_one(machine):
    machine()
    assert start_world("auto") == World(0, 1, 0, torch.device("cpu"))


@pytest.mark.parametrize(
    ("accelerator", "asked", "device"),
    [
        ("cuda", "auto", "cuda:3"),
        ("cuda", "cuda", "cuda:3"),
        ("cuda", "cpu", "cpu"),
        ("xpu", "auto", "xpu:3"),
        ("mps", "auto", "mps"),
    ],
)
def test_the_device_index_is_the_local_rank(machine, accelerator, asked, device):
    machine(accelerator, RANK="0", WORLD_SIZE="1", LOCAL_RANK="3")
    assert start_world(asked).device == torch.device(device)


@pytest.mark.parametrize(("accelerator", "asked"), [(None, "cuda"), ("mps", "cuda")])
def test_a_device_that_is_not_there_is_an_error(machine, accelerator, asked):
    machine(accelerator)
    with pytest.raises(ConfigError, match=f"--device {asked}: this machine has no such device"):
        start_world(asked)


@pytest.mark.parametrize(
    ("variables", "wrong"),
    [
        ({"RANK": "abc"}, "RANK"),
        ({"RANK": "-3"}, "RANK"),
        ({"RANK": "1"}, "RANK"),
        ({"RANK": "1", "WORLD_SIZE": "1"}, "RANK"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK"),
        ({"WORLD_SIZE": ""}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "1.0"}, "WORLD_SIZE"),
        ({"WORLD_SIZE": "9" * 5000}, "WORLD_SIZE"),
        ({"LOCAL_RANK": "x"}, "LOCAL_RANK"),
    ],
)
def test_variables_that_make_no_sense_are_an_error(variables, wrong, machine):
    machine(**variables)
    with pytest.raises(ConfigError, match=f"the environment variable {wrong} is wrong"):
        start_world("cpu")
    assert is_first()


@pytest.mark.parametrize("started", [start_world, lambda device: enter(enable_fsdp=False)])
def test_several_processes_are_refused_without_fsdp(machine, started):
    """Two runs that know nothing of each other would write one folder."""
    machine(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
    with pytest.raises(
        ConfigError, match=r"2 processes were started.*\n.*\n  do: add --enable_fsdp"
    ):
        started("cpu")


def enter(device: str = "auto", *, enable_fsdp: bool = True) -> World:
    """The world of a body that does nothing."""
    with open_world(device, enable_fsdp=enable_fsdp, timeout_seconds=20) as world:
        return world


@pytest.mark.parametrize(("rank", "local_rank", "index"), [("3", "1", 1), ("2", "0", 0)])
def test_of_several_machines_the_local_rank_counts(machine, rank, local_rank, index):
    machine("cuda", RANK=rank, WORLD_SIZE="4", LOCAL_RANK=local_rank, LOCAL_WORLD_SIZE="2")
    ranks = read_ranks()
    assert choose_device("auto", ranks.local_rank) == torch.device("cuda", index)


def test_one_process_without_fsdp_has_no_group(machine):
    machine()
    with open_world("auto", enable_fsdp=False, timeout_seconds=20) as world:
        assert world == World(0, 1, 0, torch.device("cpu"))
        assert not dist.is_initialized()


@pytest.mark.parametrize("variables", [{}, {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}])
def test_one_process_with_fsdp_is_a_group_of_one(machine, variables):
    """With and without torchrun; the group ends with the body, however that ends."""
    machine(**variables)
    for _ in range(2):
        with open_world("auto", enable_fsdp=True, timeout_seconds=20) as world:
            assert (world.rank, world.size, world.local_size) == (0, 1, 1)
            assert (dist.get_world_size(), dist.get_backend()) == (1, "gloo")
            assert sum_floats([2.0], world) == [2.0]
        assert not dist.is_initialized()
    with pytest.raises(ZeroDivisionError), open_world("auto", enable_fsdp=True, timeout_seconds=20):
        raise ZeroDivisionError
    assert not dist.is_initialized()


def test_a_device_that_torch_can_not_join_is_refused(machine):
    machine("mps")
    with pytest.raises(ConfigError, match="can not join processes on mps"):
        enter()


@pytest.mark.parametrize(
    ("kind", "missing", "name"),
    [("cuda", "nccl", "cuda:nccl"), ("xpu", "xccl", "xpu:xccl"), ("cuda", "gloo", "cpu:gloo")],
)
def test_a_torch_without_the_backend_is_refused(machine, monkeypatch, kind, missing, name):
    machine(kind)
    for backend in ("gloo", "nccl", "xccl"):
        there = backend != missing
        monkeypatch.setattr(dist, f"is_{backend}_available", lambda there=there: there)
    with pytest.raises(ConfigError, match=f"this torch is built without .*{name}"):
        enter()


def test_more_processes_than_devices_are_refused(machine, monkeypatch):
    """Before anything waits for anybody."""
    machine("cuda", devices=1, RANK="0", WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="2")
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    with pytest.raises(ConfigError, match=r"2 processes were started on host .*fewer cuda devices"):
        enter()
