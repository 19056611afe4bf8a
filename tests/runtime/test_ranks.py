"""Which process this is: what torchrun sets, what one sets by hand, and what makes no sense."""

import pytest

from ftrecipes.config.errors import ConfigError
from ftrecipes.runtime.ranks import Ranks, is_first, is_loopback, read_ranks

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
HERE = {"MASTER_ADDR": "127.0.0.1"}
AWAY = {"MASTER_ADDR": "10.0.0.1"}


@pytest.fixture
def variables(monkeypatch):
    """Set these, and no others."""

    def setup(**values: str) -> None:
        for name in NAMES:
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return setup


@pytest.mark.parametrize(
    ("values", "ranks"),
    [
        ({}, Ranks(0, 1, 0, 1)),
        ({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}, Ranks(0, 1, 0, 1)),
        (
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
            Ranks(3, 4, 1, 2),
        ),
        ({"RANK": "3", "WORLD_SIZE": "4"} | HERE, Ranks(3, 4, 3, 4)),
        ({"RANK": "3", "WORLD_SIZE": "4"} | AWAY, Ranks(3, 4, 0, 1)),
    ],
)
def test_the_place_of_a_process(variables, values, ranks):
    variables(**values)
    assert read_ranks() == ranks
    assert is_first() == (ranks.rank == 0)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"WORLD_SIZE": "2"}, "RANK"),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "LOCAL_WORLD_SIZE"),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}, "LOCAL_RANK"),
    ],
)
def test_a_variable_that_is_missing_is_named(variables, values, name):
    variables(**values)
    with pytest.raises(ConfigError, match=f"the environment variable {name} is missing\n"):
        read_ranks()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"}, "LOCAL_RANK is wrong\n  got: 2\n"),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "9"}, "LOCAL_WORLD_SIZE is wrong\n  got: 9\n"),
        ({"LOCAL_RANK": "a", "LOCAL_WORLD_SIZE": "2"}, "LOCAL_RANK is wrong\n  got: a\n"),
    ],
)
def test_places_on_a_machine_that_can_not_be(variables, values, message):
    variables(RANK="1", WORLD_SIZE="4", **values)
    with pytest.raises(ConfigError, match=message):
        read_ranks()


@pytest.mark.parametrize(
    ("address", "answer"),
    [
        ("localhost", True),
        ("127.0.1.1", True),
        ("::1", True),
        ("10.0.0.1", False),
        ("fd00::2", False),
        ("node0.cluster", False),
    ],
)
def test_addresses_that_mean_whoever_uses_them(address, answer):
    assert is_loopback(address) == answer
