"""What ranks tell each other, and what the machines of a run do once or must share."""

import pytest
import torch

from ftrecipes.runtime.collectives import (
    barrier,
    concatenate_parts,
    first_says,
    gather_objects,
    sum_floats,
)
from ftrecipes.runtime.nodes import check_same, check_shared_folder, first_on_machine
from ftrecipes.runtime.world import World
from tests import ranks

CHECKS = "tests.distributed.checks_nodes"
TWO = ranks.fixture(CHECKS, size=2)
THREE = ranks.fixture(CHECKS, size=3)


@pytest.mark.parametrize("name", ranks.names(CHECKS))
def test_two_ranks(TWO, name):
    ranks.assert_passed(TWO, name)


@pytest.mark.parametrize("name", ranks.names(CHECKS))
def test_three_ranks(THREE, name):
    ranks.assert_passed(THREE, name)


def test_one_process_needs_no_group(tmp_path):
    world = World(0, 1, 0, torch.device("cpu"))
    assert sum_floats([1, 2.5], world) == [1.0, 2.5]
    assert gather_objects("a", world) == ["a"]
    assert first_says("a", world) == "a"
    barrier(world)
    part = torch.arange(3)
    assert concatenate_parts(part, [3], None).equal(part)
    with first_on_machine(world):
        pass
    check_same(world, settings={"lr": 0.1})
    check_shared_folder(world, tmp_path / "missing")
