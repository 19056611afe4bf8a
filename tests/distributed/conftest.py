"""Fixtures of tests over several hosts."""

import pytest

from tests.distributed import hosts


@pytest.fixture
def pair():
    """Two hosts that know each other."""
    if not hosts.can_make():
        pytest.skip("needs root, iproute2 and network namespaces")
    with hosts.two_hosts() as pair:
        yield pair
