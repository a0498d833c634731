"""What every test relies on: eight CPU devices, no silent broadcasting over ranks, a cache of its own.

These settings must be made before JAX is used for the first time, so they stand at the top.
"""

import gc
import importlib.metadata
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The arrays are tiny: nearly all the time goes to compiling. Set it to 0 to test what runs compile.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Settings of XLA's CPU compiler for programs that run once: one module of LLVM in place of up to 32. XLA ends the process at a
# flag that it does not know, so only releases are listed that were tried.
FLAGS = {
    # The older code generator compiles train steps in little more than half the time of the present one; 0.12 has it no more.
    "0.10.": "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
    "0.12.": "--xla_cpu_parallel_codegen_split_count=1",
}
for release, flags in FLAGS.items():
    if importlib.metadata.version("jaxlib").startswith(release):
        os.environ["XLA_FLAGS"] = f"{flags} {os.environ.get('XLA_FLAGS', '')}".strip()
# Threads of the CPU's devices: each takes one while it waits for the others, once for every collective that does not depend on
# another, of which two passes have many. With too few of them all wait, and XLA aborts.
os.environ.setdefault("PJRT_NPROC", "64")

import pathlib

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def cache_directory(tmp_path_factory):
    """Whatever a test caches goes to a directory of this session, also from a process that the test starts."""
    directory = tmp_path_factory.mktemp("cache")
    patch = pytest.MonkeyPatch()
    patch.setenv("AG_JAX_CACHE", str(directory))
    yield directory
    patch.undo()


@pytest.fixture(scope="session", autouse=True)
def compiled_programs(tmp_path_factory):
    """A folder of compiled programs for the processes that tests start, which compile the same ones again and again.

    Each pytest worker has its own: JAX writes these files in place and without a lock.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
        yield


@pytest.fixture(scope="session")
def shared() -> pathlib.Path:
    """The real data sets that lie beside the repository; tests that want them are skipped where they are missing."""
    directory = REPOSITORY.parent / "shared"
    if not directory.is_dir():
        pytest.skip(f"needs the data sets of {directory}, which is not there")
    return directory


@pytest.fixture(scope="session")
def eight_devices() -> list[jax.Device]:
    """Eight devices, real or pretended by the CPU."""
    devices = jax.devices()
    if len(devices) < 8:
        pytest.skip(f"needs 8 devices, there are {len(devices)}; run with JAX_PLATFORMS=cpu")
    return devices[:8]


@pytest.fixture
def one_device(monkeypatch) -> jax.Device:
    """Runs that the test starts see one device: what they train does not depend on it, and compiles in half the time."""
    device = jax.devices()[0]
    monkeypatch.setattr(jax, "devices", lambda: [device])
    return device


# Files that take longest, in this order: they begin first, so that no worker is left with one of them at the end.
LONG = (
    "tests/multihost/test_many_hosts.py",
    "tests/test_command.py",
    "tests/finetuning/test_suite.py",
    "tests/test_configs.py",
    "tests/finetuning/test_configs.py",
    "tests/pretraining/test_rival_runs.py",
    "tests/pretraining/test_adversarial_runs.py",
    "tests/objectives/test_attacks_compose.py",
    "tests/attention/test_kernels.py",
    "tests/test_interruption.py",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Put the tests of `LONG` first; the order is otherwise that of the files."""
    order = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0], len(LONG)))


def pytest_collection_finish(session):
    """Keep the garbage collector from walking all imported modules and all tests again and again while JAX traces."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
