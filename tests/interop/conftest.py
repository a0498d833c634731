"""Runs of this folder that many tests read and none changes."""

import functools

import pytest

from tests.interop import copies


@pytest.fixture(scope="session")
def run_of(tmp_path_factory):
    """The run directory of a golden, by its name, imported when it is wanted."""

    @functools.cache
    def get(name):
        workdir = tmp_path_factory.mktemp("imported") / name
        copies.imported(copies.GOLDENS / name, workdir)
        return workdir

    return get


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """A glob of a few text files."""
    directory = tmp_path_factory.mktemp("text")
    for number in range(12):
        (directory / f"{number}.txt").write_text("the state of our union is strong. we will rebuild our roads. " * 4)
    return str(directory / "*.txt")
