"""Settings and fixtures of all tests: eight CPU devices, no implicit rank promotion, a cache for the test session.

The environment variables are set at the top because JAX reads them when it is first used.
"""

import ctypes
import gc
import importlib.metadata
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The arrays are tiny: nearly all the time goes to compiling. Set it to 0 to test the programs that real runs compile.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# Settings of XLA's CPU compiler for programs that run once: one LLVM module instead of up to 32. XLA ends the process
# at an unknown flag, so only tested releases are listed.
FLAGS = {
    # The older code generator compiles train steps in little more than half the time; 0.12 does not have it any more.
    "0.10.": "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
    "0.12.": "--xla_cpu_parallel_codegen_split_count=1",
}
for release, flags in FLAGS.items():
    if importlib.metadata.version("jaxlib").startswith(release):
        os.environ["XLA_FLAGS"] = f"{flags} {os.environ.get('XLA_FLAGS', '')}".strip()
# Threads of the CPU devices: a device occupies a thread while it waits for the others in a collective, and independent
# collectives wait at the same time; two passes have many of them. With too few threads all wait, and XLA aborts.
os.environ.setdefault("PJRT_NPROC", "64")
# Programs without source locations: no test reads them, and recording them takes 4 % of the CPU time.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

import pathlib

import jax
import pytest

from ag_jax.settings import imported

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
MOST_MEMORY = 2 * 2**30  # bytes of a process of tests, from which it forgets the programs that it has compiled
STATM = pathlib.Path("/proc/self/statm")  # the sizes of this process, in pages, on Linux


@pytest.fixture(scope="module", autouse=True)
def bounded_memory():
    """Forget compiled programs after a file of tests once they take much memory.

    Otherwise each of the processes that share the tests grows to 6 to 8 GiB, and a machine with 24 GiB runs out.
    """
    yield
    if STATM.exists() and int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > MOST_MEMORY:
        jax.clear_caches()
        gc.collect()
        if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # the GNU C library keeps what is freed until it is told
            libc.malloc_trim(0)


@pytest.fixture(autouse=True)
def imports_as_at_the_start(monkeypatch):
    """Forget which functions the files and settings of other tests name."""
    for name in ("_stored", "_allowed"):
        monkeypatch.setattr(imported, name, set())


@pytest.fixture(scope="session", autouse=True)
def cache_directory(tmp_path_factory):
    """Put all caches in a directory of this session, also those of processes that a test starts."""
    directory = tmp_path_factory.mktemp("cache")
    patch = pytest.MonkeyPatch()
    patch.setenv("AG_JAX_CACHE", str(directory))
    yield directory
    patch.undo()


@pytest.fixture(scope="session", autouse=True)
def compiled_programs(tmp_path_factory):
    """Set compilation caches for tests and for the processes that they start, because many compile the same programs.

    Each pytest worker has its own caches, because JAX writes these files in place and without a lock. Programs of the
    tests themselves are kept only if they take long to compile: small ones are rarely compiled twice.
    """
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled_by_tests")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
        yield


@pytest.fixture(scope="session")
def shared() -> pathlib.Path:
    """The directory of real data sets beside the repository; tests that need it are skipped if it is missing."""
    directory = REPOSITORY.parent / "shared"
    if not directory.is_dir():
        pytest.skip(f"needs the data sets of {directory}, which is not there")
    return directory


@pytest.fixture(scope="session")
def eight_devices() -> list[jax.Device]:
    """Eight devices, real or simulated by the CPU."""
    devices = jax.devices()
    if len(devices) < 8:
        pytest.skip(f"needs 8 devices, there are {len(devices)}; run with JAX_PLATFORMS=cpu")
    return devices[:8]


@pytest.fixture
def one_device(monkeypatch) -> jax.Device:
    """Hide all devices but one, because runs on one device train the same and compile in half the time."""
    device = jax.devices()[0]
    monkeypatch.setattr(jax, "devices", lambda: [device])
    return device


@pytest.fixture(scope="session")
def bucket_server():
    """Server of buckets for all tests of a session, because TensorStore reads its address once."""
    from tests import bucket

    server = bucket.Server()
    yield server
    server.close()


@pytest.fixture
def bucket(bucket_server, monkeypatch):
    """Point paths at gs:// to an empty bucket, `gs://bucket`; the server (`tests.bucket.Server`)."""
    bucket_server.reset("bucket")
    for name, value in bucket_server.environment.items():
        monkeypatch.setenv(name, value)
    yield bucket_server
    bucket_server.reset()


# Slow files that come late in the order of names. They start first, so that no worker is left with one at the end.
LONG = (
    "tests/multihost/test_many_hosts.py",
    "tests/buckets/test_runs.py",
    "tests/test_command.py",
    "tests/test_inspection.py",
    "tests/test_translating.py",
    "tests/test_api.py",
    "tests/test_pipelines.py",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Put the tests of `LONG` first where processes share the tests; otherwise the order is that of the files."""
    if not hasattr(config, "workerinput"):
        return
    order = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0], len(LONG)))


def pytest_collection_finish(session):
    """Exempt all imported modules and collected tests from garbage collection, which JAX's tracing triggers often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
