"""Fixtures of the tests that start several hosts."""

import pytest


@pytest.fixture
def started():
    """A list for hosts that a test starts, which are ended with it."""
    hosts = []
    yield hosts
    for host in hosts:
        host.kill()
