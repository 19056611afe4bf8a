"""Checkpointing on shares of two ranks, and what is saved with it."""

import pytest

from tests import ranks

NUMBERS = "tests.distributed.checks_recompute"
SAVED = "tests.distributed.checks_recompute_saved"
TWO = ranks.fixture(NUMBERS, SAVED, size=2)


@pytest.mark.parametrize("name", ranks.names(NUMBERS))
def test_numbers_of_two_ranks(TWO, name):
    ranks.assert_passed(TWO, name)


@pytest.mark.parametrize("name", ranks.names(SAVED))
def test_what_two_ranks_save(TWO, name):
    ranks.assert_passed(TWO, name)
