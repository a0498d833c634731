"""Fixtures of tests of fine-tuning, which tests do not change."""

import pytest

from tests.finetuning import tiny_tasks


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """The folder with the tasks of `tiny_tasks.write`."""
    return str(tiny_tasks.write(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """The directory of the run of `tiny_tasks.checkpoint`."""
    return tiny_tasks.checkpoint(tmp_path_factory.mktemp("checkpoint"))
