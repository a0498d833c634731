"""What can be said of the GPU kernels without a GPU, besides their results: that they compile, and what memory they
take.

The tests that compile for an A100 and an H100 need JAX's CUDA plugin, `pip install '.[cuda12]'`, and no GPU.
"""

import functools
import importlib.util
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import AbstractDevice, AbstractMesh, SingleDeviceSharding

from ag_jax.attention.kernels.gpu import attention as gpu
from ag_jax.attention.kernels.gpu import grid
from ag_jax.attention.kernels.interface import KernelConfig, KernelInputs
from ag_jax.attention.visibility import EVERYTHING, Band
from tests.cases import some

# Said by JAX 0.12, in which Triton works and Mosaic is to follow it.
pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")

KERNELS = {"attention", "attention_query_gradient", "attention_key_gradient"}


def lower(
    size,
    batch=2,
    keys=None,
    bias=None,
    learn_bias=False,
    guided=True,
    rate=0.1,
    band=EVERYTHING,
    loss="squared",
    device=None,
):
    """Gradients of everything, lowered for a GPU; `keys` is their number, if it is not that of the queries."""
    length, heads, width, dtype = size
    keys = keys or length
    config = KernelConfig(heads, heads, width, length, keys, rate, heads if guided else 0, band, loss)

    def total(*operands):
        mixed, sums = gpu.attend(config, KernelInputs(*operands))
        return sum(jnp.square(array.astype(jnp.float32)).sum() for array in (mixed, *sums))

    shape = functools.partial(jax.ShapeDtypeStruct, sharding=device and SingleDeviceSharding(device))
    operands = (
        *(shape((batch, size, heads * width), dtype) for size in (length, keys, keys)),
        *(shape((batch, size), jnp.int32) for size in (length, keys)),
        None if bias is None else shape((*bias, length, keys), jnp.float32),
        shape((batch, heads, length), jnp.int32) if guided else None,
        shape((batch, heads, keys), jnp.float32) if guided else None,
        shape((4,), jnp.int32),
    )
    gradient = jax.jit(jax.grad(total, (0, 1, 2, 5) if learn_bias else (0, 1, 2)))
    abstract = AbstractDevice(device_kind="NVIDIA H100", num_cores=None, platform="gpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("x",), abstract_device=abstract)):
        return gradient.trace(*operands).lower(lowering_platforms=("cuda",))


SIZES = {
    "roberta12": (512, 12, 64, "bfloat16"),
    "roberta16": (512, 16, 48, "bfloat16"),
    "long": (8192, 12, 64, "bfloat16"),
    "float32": (512, 12, 64, "float32"),
    "odd": (500, 3, 12, "float32"),
    "wide": (300, 2, 256, "bfloat16"),
}
VARIANTS = {
    "guided": {},
    "plain": {"rate": 0.0, "guided": False},
    "bias": {"bias": (1, 1)},
    "learnt_bias": {"bias": (2, 1), "learn_bias": True},
    "causal": {"band": Band(None, 0)},
    "window": {"band": Band(128, 128), "bias": (1, 1), "learn_bias": True},
    "cross_entropy": {"loss": "cross_entropy", "band": Band(128, 128), "bias": (1, 1), "learn_bias": True},
    "cross": {"keys": 300, "bias": (2, 12), "learn_bias": True},
    "cross_causal": {"keys": 700, "band": Band(None, 0), "rate": 0.0, "guided": False},
}
CASES = [*((size, "guided") for size in SIZES), *(("roberta12", name) for name in VARIANTS if name != "guided")]
USUAL = [
    *((size, "guided") for size in ("odd", "wide", "float32")),
    ("roberta12", "cross_entropy"),
    ("roberta12", "cross_causal"),
]


@pytest.mark.parametrize(("size", "variant"), some(CASES, *USUAL))
def test_lowers(size, variant):
    names = set(re.findall(r'name = "(attention\w*)"', lower(SIZES[size], **VARIANTS[variant]).as_text()))
    assert names >= KERNELS and names <= KERNELS | {"attention_bias_gradient"}


def test_writes_no_matrix():
    """Of all arrays of the program none is L x L, unless a bias is given: then that one, and its gradient."""
    text = lower(SIZES["long"], batch=1).as_text()
    assert "8192x768x" in text
    assert "8192x8192x" not in text
    text = lower((1024, 12, 64, jnp.bfloat16), batch=1, bias=(1, 1), learn_bias=True).as_text()
    assert set(re.findall(r"tensor<(\w*1024x1024x\w+)>", text)) == {"1x1x1024x1024xf32"}


def test_visits_all_that_meet_and_few_others():
    """Whatever has a number in common is visited; of documents in order, no more than those."""
    rng, blocks = np.random.default_rng(0), grid.Blocks(16, 8, 1, 1)
    in_order, in_disorder = np.sort(rng.integers(1, 9, (3, 75)), axis=1), rng.integers(0, 3, (3, 75))
    in_order[1, 50:] = 0
    for segments_BL, is_exact in ((in_order, True), (in_disorder, False)):
        visits_BTC = np.asarray(grid.visits(*[jnp.asarray(segments_BL, jnp.int32)] * 2, blocks, EVERYTHING))
        assert visits_BTC.shape == (3, 5, 2)
        for example, block in np.ndindex(3, 5):
            held = set(segments_BL[example, 16 * block : 16 * block + 16])
            meet = [s for s in range(10) if held & set(segments_BL[example, 8 * s : 8 * s + 8])]
            first, last = visits_BTC[example, block]
            assert first <= meet[0] and meet[-1] < last
            assert not is_exact or (first, last) == (meet[0], meet[-1] + 1)


def test_blocks_fit_short_rows():
    assert grid.Blocks(128, 64, 8, 3).fit(512, 512) == grid.Blocks(128, 64, 8, 3)
    assert grid.Blocks(128, 64, 8, 3).fit(37, 37) == grid.Blocks(64, 64, 4, 3)
    assert grid.Blocks(128, 64, 8, 3).fit(3, 3) == grid.Blocks(16, 16, 1, 3)


@pytest.fixture(scope="module", params=["a100", "h100"])
def device(request):
    """A device to compile for that is not there."""
    plugins = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")
    if importlib.util.find_spec("jax_plugins") is None or not any(map(importlib.util.find_spec, plugins)):
        pytest.skip("needs JAX's CUDA plugin: pip install '.[cuda12]'")
    description = (pathlib.Path(__file__).parent / f"{request.param}.txt").read_text()
    return topologies.get_topology_desc(platform="cuda", target_config=description, topology="1x1x1").devices[0]


@pytest.mark.parametrize(("size", "variant"), CASES)
def test_compiles(device, size, variant):
    """What needs more registers or shared memory than there are is refused here."""
    lines = lower(SIZES[size], **VARIANTS[variant], device=device).compile().as_text().splitlines()
    calls = [line for line in lines if "custom-call(" in line]
    names = {name for line in calls for name in re.findall(r"(attention\w*)\)*/pallas_call", line)}
    # The gradient of a bias that is not learnt costs nothing: it is not there.
    assert names == KERNELS | ({"attention_bias_gradient"} if VARIANTS[variant].get("learn_bias") else set())


def test_memory_grows_with_the_length(device):
    bytes_ = [
        lower((length, 12, 64, "bfloat16"), batch=1, device=device).compile().memory_analysis().temp_size_in_bytes
        for length in (2048, 8192)
    ]
    assert bytes_[1] < 4.5 * bytes_[0]
