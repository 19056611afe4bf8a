"""What two and three ranks save is what one process with the whole model would."""

import pytest

from tests import ranks

CHECKS = "tests.distributed.checks_save"
FAULTS = "tests.distributed.checks_save_faults"
TWO = ranks.fixture(CHECKS, size=2)
THREE = ranks.fixture(CHECKS, size=3)
TWO_AND_FAULTS = ranks.fixture(FAULTS, size=2)


@pytest.mark.parametrize("name", ranks.names(CHECKS))
def test_two_ranks(TWO, name):
    ranks.assert_passed(TWO, name)


@pytest.mark.parametrize("name", ranks.names(CHECKS))
def test_three_ranks(THREE, name):
    ranks.assert_passed(THREE, name)


@pytest.mark.parametrize("name", ranks.names(FAULTS))
def test_faults_on_one_of_two_ranks(TWO_AND_FAULTS, name):
    ranks.assert_passed(TWO_AND_FAULTS, name)
