"""Which process this is, and which device it takes."""

from types import SimpleNamespace

import pytest
import torch

from ftrecipes.config.errors import ConfigError
from ftrecipes.runtime.ranks import is_first
from ftrecipes.runtime.world import World, start_world


@pytest.fixture
def machine(monkeypatch):
    """Set torchrun's variables and the accelerator that torch finds."""

    def setup(accelerator: str | None = None, **variables: str) -> None:
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        found = None if accelerator is None else torch.device(accelerator)
        interface = SimpleNamespace(
            is_available=lambda: found is not None, current_accelerator=lambda: found
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


def test_several_processes_are_refused(machine):
    """Two runs that know nothing of each other would write one folder."""
    machine(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
    with pytest.raises(ConfigError, match="2 processes were started"):
        start_world("cpu")
