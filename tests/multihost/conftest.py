"""What all hosts of these tests share."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def compiled_programs(tmp_path_factory):
    """A folder of compiled programs: hosts are started again and again with the same ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
        yield
