"""Steps on shares of one to four ranks are those of a process without any."""

import pytest

from tests import ranks

ALONE = "tests.distributed.checks_shard_one"
STEPS = "tests.distributed.checks_shard_steps"
ENGINE = "tests.distributed.checks_shard_engine"
UNEVEN = "tests.distributed.checks_shard_uneven"
HYBRID = "tests.distributed.checks_shard_hybrid"
ONE = ranks.fixture(ALONE, size=1)
TWO = ranks.fixture(STEPS, size=2)
TWO_MORE = ranks.fixture(ENGINE, size=2)
THREE = ranks.fixture(UNEVEN, size=3)
FOUR = ranks.fixture(HYBRID, size=4)


@pytest.mark.parametrize("name", ranks.names(ALONE))
def test_one_rank(ONE, name):
    ranks.assert_passed(ONE, name)


@pytest.mark.parametrize("name", ranks.names(STEPS))
def test_steps_of_two_ranks(TWO, name):
    ranks.assert_passed(TWO, name)


@pytest.mark.parametrize("name", ranks.names(ENGINE))
def test_engine_of_two_ranks(TWO_MORE, name):
    ranks.assert_passed(TWO_MORE, name)


@pytest.mark.parametrize("name", ranks.names(UNEVEN))
def test_three_ranks(THREE, name):
    ranks.assert_passed(THREE, name)


@pytest.mark.parametrize("name", ranks.names(HYBRID))
def test_four_ranks(FOUR, name):
    ranks.assert_passed(FOUR, name)
