import pytest
from etils import epath

from ag_jax.pretraining import run
from tests.pretraining import tiny_runs


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """The text of `tiny_runs`."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(tiny_runs.TEXT)
    return path


@pytest.fixture(scope="session")
def short(text, tmp_path_factory):
    """A finished run, which no test may change: (directory, summary)."""
    workdir = epath.Path(tmp_path_factory.mktemp("short") / "run")
    with tiny_runs.on_one_device():
        return workdir, run.train(tiny_runs.settings(text), workdir)
