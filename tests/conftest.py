"""What every test starts from."""

import logging

import pytest


@pytest.fixture(autouse=True)
def log_as_it_was():
    """A command started inside a test takes the log to itself; the next test reads it as before."""
    logger = logging.getLogger("ftrecipes")
    before = (logger.handlers[:], logger.propagate, logger.level)
    yield
    logger.handlers[:], logger.propagate = before[:2]
    logger.setLevel(before[2])
