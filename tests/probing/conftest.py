"""Fixtures of tests of probes."""

import pytest

from tests.probing import trained_models


@pytest.fixture(scope="session")
def places(tmp_path_factory):
    """The folder with the models of `trained_models.write`, which tests do not change."""
    directory = tmp_path_factory.mktemp("models")
    trained_models.write(directory)
    return directory
