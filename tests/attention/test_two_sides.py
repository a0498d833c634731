"""Attention of two sides, causal masks and windows, against loops over single queries in numpy's float64.

The oracle here lists the keys that a query sees, one by one, and differentiates by hand.
"""

import dataclasses
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
from ag_jax.attention.kernels.gpu import grid as gpu_grid
from ag_jax.attention.kernels.tpu import attention as tpu
from ag_jax.attention.kernels.tpu import grid as tpu_grid
from ag_jax.attention.patterns import Shift
from ag_jax.attention.visibility import Band
from tests.cases import some

KEY = jax.random.key(5)
BATCH, HEADS, WIDTH = 2, 3, 8
ON_GPU = jax.default_backend() == "gpu"
# Blocks of unequal sizes, of which each side has several.
SMALL_BLOCKS = gpu_grid.KernelBlocks(
    *(gpu_grid.Blocks(*sizes, 1, 1) for sizes in ((32, 16), (16, 32), (16, 16), (32, 16)))
)
TPU = Fused(functools.partial(tpu.attend, interpret=True))
IMPLEMENTATIONS = {
    "reference": reference.attend,
    "tpu": TPU,
    "tpu_blocks": TPU,
    "gpu": Fused(functools.partial(gpu.attend, interpret=not ON_GPU)),
    "gpu_blocks": Fused(functools.partial(gpu.attend, kernel_blocks=SMALL_BLOCKS, interpret=not ON_GPU)),
}


@pytest.fixture
def implementation(request, monkeypatch):
    """One implementation; `tpu_blocks` has blocks of 16, where a real TPU has one block of up to 512."""
    if request.param == "tpu_blocks":
        monkeypatch.setattr(tpu_grid, "BLOCK", 16)
        monkeypatch.setattr(tpu_grid, "_LANES", 8)
    return IMPLEMENTATIONS[request.param]


@dataclasses.dataclass(frozen=True)
class Case:
    """A call of attention.

    targets: of the heads; a number is a `Shift`, a text the name of chosen `Columns`.
    blank: some queries have segment 9, which no key has.
    """

    queries: int
    keys: int
    causal: bool = False
    window: int | None = None
    targets: tuple[int | str, ...] = ()
    bias: tuple[int, int] | None = None
    rate: float = 0.0
    packed: bool = True
    blank: bool = False

    @property
    def options(self):
        return {"causal": self.causal, "window": self.window, "rate": self.rate, "key": KEY}


CASES = {
    "causal": Case(45, 45, causal=True, targets=(-1, "some", 0)),
    "causal_dropout_bias": Case(45, 45, causal=True, bias=(2, 1), rate=0.2, packed=False),
    "window": Case(45, 45, window=13, targets=(3, "some", -6), rate=0.2),
    "window_bias": Case(50, 50, window=8, bias=(1, 3), packed=False),
    "causal_window": Case(45, 45, causal=True, window=21, bias=(1, 1), targets=("some",)),
    "only_itself": Case(21, 21, window=1),
    "cross": Case(23, 53, targets=("some", "all"), bias=(2, 3), rate=0.2, blank=True),
    "cross_long_queries": Case(53, 9, targets=("all",), rate=0.1, blank=True),
    "cross_causal": Case(55, 20, causal=True, targets=("all", "some"), bias=(1, 1), blank=True),
    "cross_causal_more_keys": Case(20, 55, causal=True, packed=False),
    "cross_window": Case(70, 19, window=11, bias=(2, 1), targets=("some",), packed=False),
    "sides_of_one_length": Case(37, 37, targets=(1, "some", -2), blank=True),
}


def segment_ids(case, length, seed):
    """Texts 1, 2, 3 and then padding in packed rows; otherwise one text and padding in the second row."""
    ids = np.ones((BATCH, length), np.int32)
    if not case.packed:
        ids[1, length - 3 :] = 0
        return ids
    rng = np.random.default_rng(seed)
    for row in ids:
        borders = np.sort(rng.choice(np.arange(2, length - 2), 3, replace=False))
        for number, border in enumerate(borders):
            row[border:] = (2, 3, 0)[number]
    return ids


@functools.cache
def inputs_of(case, seed=0):
    """Arrays by name, the segment ids of both sides, and the weights of the targets' columns."""
    rng = np.random.default_rng(seed)
    arrays = {
        "query": 3 * rng.standard_normal((BATCH, case.queries, HEADS, WIDTH)),
        "key": rng.standard_normal((BATCH, case.keys, HEADS, WIDTH)),
        "value": rng.standard_normal((BATCH, case.keys, HEADS, WIDTH)),
    }
    if case.bias:
        sizes = [full if size > 1 else 1 for size, full in zip(case.bias, (BATCH, HEADS), strict=True)]
        arrays["bias"] = rng.standard_normal((*sizes, case.queries, case.keys))
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    query_ids = segment_ids(case, case.queries, 1)
    key_ids = query_ids if case.queries == case.keys and not case.blank else segment_ids(case, case.keys, 2)
    if case.blank:
        query_ids = query_ids.copy()
        query_ids[0, 1:3], query_ids[1, -1] = 9, 9
    chosen = {name: rng.random(key_ids.shape) < share for name, share in (("some", 0.2), ("all", 2.0))}
    return arrays, query_ids, key_ids, chosen


def sees(case, query_ids, key_ids, b, q):
    """Keys of a query, by the words of the interface."""
    found = []
    for k in range(case.keys):
        hidden = (case.causal and k > q) or (case.window is not None and abs(q - k) > case.window // 2)
        if key_ids[b, k] == query_ids[b, q] and not hidden:
            found.append(k)
    return found


def target_row(case, target, b, q, seen, query_ids, key_ids, chosen):
    """P of a query on its keys `seen`."""
    if isinstance(target, int):
        inside = 0 <= q + target < case.keys and query_ids[b, q] > 0 and key_ids[b, q + target] == query_ids[b, q]
        # Padding of self-attention counts as one token; it is left out of losses.
        size = len(seen) if query_ids[b, q] > 0 else 1
        return np.array([float(k == q + target) if inside else 1 / size for k in seen])
    text = [k for k in range(case.keys) if key_ids[b, k] == query_ids[b, q] and query_ids[b, q] > 0]
    wanted = [k for k in text if chosen[target][b, k]] or text
    if case.causal or case.window is not None:
        wanted = [k for k in wanted if k in seen]
    if not wanted and (case.causal or case.window is not None):  # a row that sees none of its columns
        size = len(seen) if query_ids[b, q] > 0 else 1
        return np.full(len(seen), 1 / size)
    return np.array([float(k in wanted) / max(len(wanted), 1) for k in seen])


@functools.cache
def oracle(name):
    """Output, statistics, and the gradients of a weighted sum of both, in float64."""
    case = CASES[name]
    arrays, query_ids, key_ids, chosen = inputs_of(case)
    query, key, value = (arrays[side].astype(np.float64) for side in ("query", "key", "value"))
    shape = (BATCH, HEADS, case.queries, case.keys)
    multiplier = np.ones(shape)
    if case.rate:
        multiplier = np.asarray(keep_attention(KEY, case.rate, shape)) / (1 - case.rate)
    bias = np.broadcast_to(arrays["bias"].astype(np.float64), shape) if case.bias else np.zeros(shape)
    of_output, of_squares, of_overlap = cotangents(case)
    output = np.zeros((BATCH, case.queries, HEADS, WIDTH))
    squares, overlap = np.zeros((2, BATCH, len(case.targets), case.queries))
    gradient = {side: np.zeros_like(array, np.float64) for side, array in arrays.items()}
    dbias = np.zeros(shape)
    for b, h, q in np.ndindex(BATCH, HEADS, case.queries):
        seen = sees(case, query_ids, key_ids, b, q)
        if not seen:
            continue
        scores = key[b, seen, h] @ query[b, q, h] / np.sqrt(WIDTH) + bias[b, h, q, seen]
        H = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        M = multiplier[b, h, q, seen]
        output[b, q, h] = (H * M) @ value[b, seen, h]
        dH = M * (value[b, seen, h] @ of_output[b, q, h])
        if h < len(case.targets):
            P = target_row(case, case.targets[h], b, q, seen, query_ids, key_ids, chosen)
            squares[b, h, q], overlap[b, h, q] = H @ H, H @ P
            dH = dH + 2 * of_squares[b, h, q] * H + of_overlap[b, h, q] * P
        dS = H * (dH - H @ dH)
        gradient["query"][b, q, h] += dS @ key[b, seen, h] / np.sqrt(WIDTH)
        gradient["key"][b, seen, h] += np.outer(dS, query[b, q, h]) / np.sqrt(WIDTH)
        gradient["value"][b, seen, h] += np.outer(H * M, of_output[b, q, h])
        dbias[b, h, q, seen] = dS
    if case.bias:
        shared = tuple(axis for axis, size in enumerate(arrays["bias"].shape[:2]) if size == 1)
        gradient["bias"] = dbias.sum(shared, keepdims=True)
    return (output, squares, overlap), gradient


def cotangents(case):
    """Weights of output and statistics in the sum that is differentiated."""
    rng = np.random.default_rng(7)
    of_statistics = 5 * rng.standard_normal((2, BATCH, len(case.targets), case.queries))
    return (rng.standard_normal((BATCH, case.queries, HEADS, WIDTH)), *of_statistics)


def guides_of(case, key_ids, chosen):
    if not case.targets:
        return None
    made = [
        Shift(target) if isinstance(target, int) else patterns.columns(jnp.asarray(chosen[target]), key_ids)
        for target in case.targets
    ]
    return Guides(tuple(made), (1,) * len(made))


def run(attend, case, arrays, query_ids, key_ids, chosen, weights):
    """Output, statistics and gradients of one implementation, compiled."""
    key_segments = jnp.asarray(key_ids)
    query_segments = key_segments if query_ids is key_ids else jnp.asarray(query_ids)
    guides = guides_of(case, key_segments, chosen)

    def call(arrays):
        sides = (arrays[name] for name in ("query", "key", "value"))
        mixed, statistics = attend(
            *sides, query_segments, key_segments, bias=arrays.get("bias"), guides=guides, **case.options
        )
        return (mixed, statistics.sum_of_squares_BHQ, statistics.overlap_BHQ) if guides else (mixed,)

    def total(arrays):
        found = call(arrays)
        return sum(
            (one * jnp.asarray(weight, jnp.float32)).sum() for one, weight in zip(found, weights, strict=False)
        ), found

    with jax.default_matmul_precision("highest"):
        gradient, found = jax.jit(jax.grad(total, has_aux=True))({name: jnp.asarray(a) for name, a in arrays.items()})
    return jax.tree.map(np.asarray, (found, gradient))


# Where a kernel has several blocks, between the two kernels every case; otherwise those where the code differs.
USUAL = {
    "reference": ("causal", "cross_window"),
    "tpu_blocks": (
        "causal_window",
        "only_itself",
        "cross_long_queries",
        "cross_causal_more_keys",
        "cross_window",
    ),
    "gpu_blocks": ("causal_dropout_bias", "window", "window_bias", "cross_causal", "sides_of_one_length"),
}
PRODUCT = itertools.product(IMPLEMENTATIONS, CASES)


@pytest.mark.parametrize(
    ("implementation", "name"),
    some(PRODUCT, *((name, case) for name, cases in USUAL.items() for case in cases)),
    indirect=["implementation"],
)
def test_equals_float64(implementation, name):
    case = CASES[name]
    arrays, query_ids, key_ids, chosen = inputs_of(case)
    found, gradient = run(implementation, case, arrays, query_ids, key_ids, chosen, cotangents(case))
    wanted, wanted_gradient = oracle(name)
    for one, other, what in zip(found, wanted, ("output", "squares", "overlap"), strict=False):
        assert np.abs(other).max() > 1e-2, f"{what}: the comparison would be of nothing"
        np.testing.assert_allclose(one, other, atol=4e-6 * np.abs(other).max(), err_msg=what)
    for side, other in wanted_gradient.items():
        # With a single visible key, scores change nothing.
        assert name == "only_itself" or np.abs(other).max() > 1e-2, f"d{side}: the comparison would be of nothing"
        allowed = 1e-5 * max(np.abs(other).max(), 1.0)
        np.testing.assert_allclose(gradient[side], other, atol=allowed, err_msg=f"d{side}")
    blind = [(b, q) for b, q in np.ndindex(BATCH, case.queries) if not sees(case, query_ids, key_ids, b, q)]
    assert bool(blind) == (case.blank or name in ("cross_window", "cross_causal_more_keys"))
    for b, q in blind:
        assert not found[0][b, q].any() and not gradient["query"][b, q].any()
        assert all(not one[b, :, q].any() for one in found[1:])


@pytest.mark.parametrize(
    ("window", "implementation"),
    some(itertools.product([None, 12], ["tpu_blocks", "gpu_blocks"]), (None, "gpu_blocks"), (12, "tpu_blocks")),
    indirect=["implementation"],
)
def test_blocks_outside_the_band_are_never_touched(implementation, window):
    """A key that is not a number ruins each block that reads it, even where its probability is 0."""
    length, edge = 64, 32  # the edge is one of blocks, whatever their size here
    case = Case(length, length, causal=window is None, window=window, packed=False, bias=(1, 1))
    arrays, *rest = inputs_of(case)
    weights = cotangents(case)
    segments = np.ones((BATCH, length), np.int32)
    poisoned = {name: array.copy() for name, array in arrays.items()}
    for name in ("key", "value"):
        poisoned[name][:, edge + 16 :] = np.nan
    (output,), gradient = run(implementation, case, poisoned, segments, segments, rest[-1], weights)
    clean = slice(0, 16)  # these queries end before the poisoned keys, and further than a window away
    assert np.isfinite(output[:, clean]).all() and np.isfinite(gradient["query"][:, clean]).all()
    assert np.isfinite(gradient["bias"][:, :, clean]).all() and not np.isfinite(output).all()
    # Queries that do not reach back, or are hidden, must leave dK and dV alone.
    poisoned = {name: array.copy() for name, array in arrays.items()}
    poisoned["query"][:, :16] = np.nan
    _, gradient = run(implementation, case, poisoned, segments, segments, rest[-1], weights)
    for name in ("key", "value"):
        assert np.isfinite(gradient[name][:, edge:]).all() and not np.isfinite(gradient[name]).all()
    assert not gradient["bias"][:, :, :16, edge + 16 :].any()


def test_dropout_of_equal_sides_is_that_of_self_attention():
    """Dropout depends on the random key and the element alone, not on segments or on the window."""
    case = Case(21, 21, rate=0.5, packed=False)
    arrays, query_ids, *_ = inputs_of(case)
    rows = [jnp.asarray(arrays["query"]), jnp.asarray(arrays["key"]), jnp.ones_like(arrays["value"])]
    for attend in (reference.attend, TPU):

        @jax.jit
        def outputs(segments, other, attend=attend):
            def output(keys, **band):
                return attend(*rows, segments, keys, rate=0.5, key=KEY, **band)[0]

            return output(segments), output(other), output(segments, window=42)

        alone, apart, wide = outputs(jnp.asarray(query_ids), jnp.asarray(query_ids))
        np.testing.assert_allclose(apart, alone, rtol=1e-6)
        np.testing.assert_allclose(wide, alone, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"causal": True, "guides": Guides((Shift(1),), (1,))}, r"Shift\(\+1\) points at keys that causal"),
        ({"window": 3, "guides": Guides((Shift(-2),), (1,))}, r"Shift\(-2\) points at keys that causal or windowed"),
    ],
)
def test_patterns_of_keys_that_no_query_sees(arguments, message):
    rows = [jnp.ones((1, 5, 2, 4))] * 3
    with pytest.raises(ValueError, match=message):
        reference.attend(*rows, *[jnp.ones((1, 5), int)] * 2, **arguments)


def test_message_for_segments_of_the_wrong_side():
    rows = [jnp.ones((1, length, 2, 4)) for length in (5, 7, 7)]
    with pytest.raises(ValueError, match=r"key segments must have shape \(1, 7\), got \(1, 5\)"):
        reference.attend(*rows, jnp.ones((1, 5), int), jnp.ones((1, 5), int))


@pytest.mark.parametrize(
    "band", [Band(), Band(None, 0), Band(4, 4), Band(0, 0), Band(7, 0), Band(None, 3), Band(30, 2)]
)
@pytest.mark.parametrize(("held", "streamed"), [(4, 4), (8, 4), (3, 5)])
def test_block_ranges_are_those_of_the_pairs(band, held, streamed):
    """First, last and number of blocks, against every pair of positions."""
    keys, blocks, most = 7 * streamed, -(-7 * streamed // held), 0
    for block in range(blocks):
        rows = range(block * held, (block + 1) * held)
        seen = [
            s
            for s in range(7)
            if any(band.contains(q, k) for q in rows for k in range(s * streamed, (s + 1) * streamed))
        ]
        assert seen == [s for s in range(7) if band.meets(block * held, held, s * streamed, streamed)]
        first, last = (int(x) for x in band.block_range(block, held, streamed, 7))
        if seen:
            assert (first, last) == (seen[0], seen[-1])
        most = max(most, len(seen))
    assert most <= band.most_blocks(held, streamed, 7) <= most + 1
    assert all(band.contains(q, k) == band.reversed.contains(k, q) for q in range(keys) for k in range(keys))
