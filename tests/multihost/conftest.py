"""What all hosts of these tests share."""

import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def compiled_programs(tmp_path_factory):
    """A folder of compiled programs, of all of pytest's workers: hosts are started again and again with the same ones."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
        yield
