"""Every implementation of attention against one in float64 that is written the long way, values and gradients."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ag_jax.attention import patterns
from ag_jax.attention.dropout import keep_attention
from ag_jax.attention.guidance import Guides
from ag_jax.attention.kernels import reference
from ag_jax.attention.kernels.dispatch import Fused
from ag_jax.attention.kernels.gpu import attention as gpu
from ag_jax.attention.kernels.gpu import grid
from ag_jax.attention.kernels.tpu import attention as tpu
from ag_jax.attention.kernels.tpu import grid as tpu_grid
from ag_jax.attention.patterns import Columns, Shift
from tests.cases import some

KEY = jax.random.key(11)
# JAX_PLATFORMS=cuda runs the GPU's kernels on one.
ON_GPU = jax.default_backend() == "gpu"
# Several blocks for 37 tokens, of unequal sizes.
SMALL_BLOCKS = grid.KernelBlocks(*(grid.Blocks(*sizes, 1, 1) for sizes in ((32, 16), (16, 32), (16, 16), (32, 16))))
IMPLEMENTATIONS = {
    "reference": reference.attend,
    "tpu": Fused(functools.partial(tpu.attend, interpret=True)),
    "gpu": Fused(functools.partial(gpu.attend, interpret=not ON_GPU)),
    "gpu_blocks": Fused(functools.partial(gpu.attend, kernel_blocks=SMALL_BLOCKS, interpret=not ON_GPU)),
}


def make_segments(kind, batch, length):
    """No padding; padding on the right, up to a row that is nothing else; or three texts
    in a row with padding between.
    """
    if kind == "full":
        return np.ones((batch, length), np.int32)
    position_L = np.arange(length)
    if kind == "padded":
        lengths_B = np.linspace(length, 0, batch).astype(int)
        return (position_L < lengths_B[:, None]).astype(np.int32)
    borders = np.array([[0.3, 0.55], [0.1, 0.9], [0.5, 0.52]])[np.arange(batch) % 3] * length
    segments_BL = 1 + (position_L >= borders[:, :1]) + (position_L >= borders[:, 1:])
    segments_BL[:, 1:][segments_BL[:, 1:] != segments_BL[:, :-1]] = 0
    segments_BL[:, -1] = 0
    return segments_BL.astype(np.int32)


def make_inputs(batch, length, heads, width, kind, dtype, bias_shape, seed=0):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(rng.standard_normal(shape), dtype)  # noqa: E731
    inputs = {name: draw(batch, length, heads, width) for name in ("query", "key", "value")}
    inputs["query"] = inputs["query"] * 3  # so that attention is uneven
    if bias_shape is not None:
        shape = (
            *(size if size == 1 else full for size, full in zip(bias_shape, (batch, heads), strict=True)),
            length,
            length,
        )
        inputs["bias"] = jnp.asarray(rng.standard_normal(shape), jnp.float32)
    return inputs, make_segments(kind, batch, length)


def make_guides(segments_BL):
    chosen_BK = jnp.asarray(np.random.default_rng(5).random(segments_BL.shape) < 0.3)
    targets = (Shift(1), patterns.columns(chosen_BK, jnp.asarray(segments_BL)), Shift(-2))
    return Guides(targets, (1, 1, 1))


def naive(inputs, segments_BL, guides, keep_BHQK, rate):
    """Output and statistics in float64 with every matrix written out: P too."""
    query, key, value = (inputs[name] for name in ("query", "key", "value"))
    scores = jnp.einsum("bqhv,bkhv->bhqk", query, key) / np.sqrt(query.shape[-1])
    if "bias" in inputs:
        scores = scores + inputs["bias"]
    together = (segments_BL[:, :, None] == segments_BL[:, None, :])[:, None]
    exponentials = jnp.where(together, jnp.exp(scores - scores.max(-1, keepdims=True)), 0.0)
    weights = exponentials / exponentials.sum(-1, keepdims=True)
    mixed = jnp.einsum("bhqk,bkhv->bqhv", jnp.where(keep_BHQK, weights / (1 - rate), 0.0), value)
    if guides is None:
        return mixed, None
    squares, overlaps = [], []
    n_BQ = np.array([[(row == number).sum() for number in row] for row in segments_BL])
    for head, target in enumerate(guides.targets):
        H_BQK = weights[:, head]
        if isinstance(target, Columns):
            overlap = (H_BQK * np.asarray(target.weights_BK, np.float64)[:, None, :]).sum(-1)
        else:
            P_1QK = np.eye(segments_BL.shape[1], k=target.offset)[None]
            inside = np.zeros(segments_BL.shape, bool)
            for b, q in zip(*np.nonzero(segments_BL), strict=True):
                k = q + target.offset
                inside[b, q] = 0 <= k < segments_BL.shape[1] and segments_BL[b, k] == segments_BL[b, q]
            overlap = jnp.where(inside, (H_BQK * P_1QK).sum(-1), 1.0 / n_BQ)
        squares.append((H_BQK**2).sum(-1))
        overlaps.append(overlap)
    return mixed, (jnp.stack(squares, 1), jnp.stack(overlaps, 1))


def weighted(mixed, statistics, segments_BL, seed=3):
    """Return a weighted sum of all outputs without those of padding, with a random weight for each element."""
    rng, valid = np.random.default_rng(seed), segments_BL > 0
    weights = rng.standard_normal(mixed.shape) * valid[..., None, None]
    total = (mixed.astype(jnp.promote_types(mixed.dtype, jnp.float32)) * weights).sum()
    for statistic in statistics or ():
        total += (statistic * (5 * rng.standard_normal(statistic.shape) * valid[:, None, :])).sum()
    return total


def run_naive(inputs, segments_BL, guides, rate):
    batch, length, heads, _ = inputs["query"].shape
    keep = np.asarray(keep_attention(KEY, rate, (batch, heads, length, length))) if rate else np.bool_(True)
    with jax.enable_x64(True):
        inputs = jax.tree.map(lambda array: jnp.asarray(np.asarray(array, np.float64)), inputs)
        results = naive(inputs, segments_BL, guides, keep, rate)
        gradient = jax.grad(lambda inputs: weighted(*naive(inputs, segments_BL, guides, keep, rate), segments_BL))(
            inputs
        )
    return jax.tree.map(np.asarray, (results, gradient))


def run(attend, inputs, segments_BL, guides, rate):
    def call(inputs):
        arrays = (inputs[name] for name in ("query", "key", "value"))
        ids_BL = jnp.asarray(segments_BL)
        options = {"bias": inputs.get("bias"), "guides": guides, "rate": rate, "key": KEY}
        mixed, statistics = attend(*arrays, ids_BL, ids_BL, **options)
        return mixed, statistics and (statistics.sum_of_squares_BHQ, statistics.overlap_BHQ)

    @jax.jit
    def both(inputs):
        gradient = jax.grad(lambda inputs: weighted(*call(inputs), segments_BL).astype(jnp.float32))(inputs)
        return call(inputs), gradient

    with jax.default_matmul_precision("highest"):
        return jax.tree.map(lambda array: np.asarray(array, np.float64), both(inputs))


def assert_same(found, expected, segments_BL, dtype):
    """Errors relative to the largest value; outputs and statistics of padding do not count."""
    valid = segments_BL > 0
    ((mixed, statistics), gradient), ((wanted, wanted_statistics), wanted_gradient) = found, expected
    # Gradients of blocks go by the rows' logarithmic sums, of about 20, and inherit their rounding several times.
    tolerance, of_gradients = {"float32": (3e-6, 1e-5), "bfloat16": (1.2e-2, 2.4e-2)}[dtype]
    pairs = [("output", mixed[valid], wanted[valid], tolerance)]
    for name, one, other in zip(("squares", "overlap"), statistics or (), wanted_statistics or (), strict=False):
        pairs.append((name, one.swapaxes(1, 2)[valid], other.swapaxes(1, 2)[valid], 3e-6))
    pairs += [(f"d{name}", gradient[name], wanted_gradient[name], of_gradients) for name in gradient]
    for name, one, other, allowed in pairs:
        assert np.abs(other).max() > 1e-3, f"{name}: the comparison would be of nothing"
        error = np.abs(one - other).max() / np.abs(other).max()
        assert error < allowed, f"{name}: {error:.2g}"


CASES = {
    "plain": {},
    "guided": {"guided": True},
    "padded": {"kind": "padded", "guided": True},
    "packed": {"kind": "packed", "guided": True},
    "dropout": {"rate": 0.2, "guided": True},
    "dropout_unguided": {"rate": 0.2, "kind": "padded"},
    "bias": {"bias": (1, 1)},
    "bias_of_examples": {"bias": (2, 1), "guided": True},
    "bias_of_heads": {"bias": (1, 2), "rate": 0.2},
    "everything": {"bias": (2, 2), "rate": 0.2, "kind": "packed", "guided": True},
    # With this width, a key block without a key of the query's text once made NaN: a rounded product beside one that is
    # not.
    "wide_packed": {"width": 64, "heads": 2, "kind": "packed"},
    "wide_padded": {"width": 64, "heads": 2, "kind": "padded", "bias": (1, 1)},
    # The TPU kernel's grid steps have two of these heads each, and the last one has no guided head.
    "wide_guided": {"width": 64, "heads": 6, "kind": "packed", "guided": True, "rate": 0.2, "bias": (1, 1)},
    "odd_width": {"width": 12, "heads": 5, "guided": True, "rate": 0.1},
}


@functools.cache
def expected(case, dtype, batch, length):
    settings = CASES[case]
    heads, width, kind = settings.get("heads", 4), settings.get("width", 8), settings.get("kind", "full")
    inputs, segments_BL = make_inputs(batch, length, heads, width, kind, dtype, settings.get("bias"))
    guides = make_guides(segments_BL) if settings.get("guided") else None
    return inputs, segments_BL, guides, run_naive(inputs, segments_BL, guides, settings.get("rate", 0.0))


def check(attend, case, dtype, batch=3, length=37):
    inputs, segments_BL, guides, wanted = expected(case, dtype, batch, length)
    found = run(attend, inputs, segments_BL, guides, CASES[case].get("rate", 0.0))
    assert_same(found, wanted, segments_BL, dtype)


# Of each implementation, cases that have every option between them; both types where rows have several blocks.
BLOCKS = (("everything", "bfloat16"), *((case, "float32") for case in ("odd_width", "wide_padded", "wide_packed")))
USUAL = {
    "reference": (("everything", "float32"), ("everything", "bfloat16"), ("wide_padded", "float32")),
    "tpu": (("wide_guided", "float32"),),
    "tpu_blocks": (*BLOCKS, ("bias_of_heads", "float32")),
    "gpu": (("wide_packed", "bfloat16"),),
    "gpu_blocks": BLOCKS,
}


def cases(names):
    product = list(itertools.product(names, CASES, ("float32", "bfloat16")))
    return some(product, *((name, *of) for name in names for of in USUAL[name]))


@pytest.mark.parametrize(("name", "case", "dtype"), cases(IMPLEMENTATIONS))
def test_equals_float64(name, case, dtype):
    check(IMPLEMENTATIONS[name], case, dtype)


@pytest.mark.parametrize(("name", "case", "dtype"), cases(["tpu_blocks"]))
def test_tpu_blocks_equal_float64(monkeypatch, name, case, dtype):
    """Three blocks of 16 for 37 tokens, where a real TPU would take more than 512 to need any."""
    monkeypatch.setattr(tpu_grid, "BLOCK", 16)
    monkeypatch.setattr(tpu_grid, "_LANES", 8)
    check(IMPLEMENTATIONS["tpu"], case, dtype)
