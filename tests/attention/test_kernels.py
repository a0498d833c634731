"""Every implementation of attention against loops over single queries in numpy's float64, values and gradients.

The oracle lists the keys that a query sees, one by one, and differentiates by hand.
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
from ag_jax.attention.kernels.gpu import grid
from ag_jax.attention.kernels.tpu import attention as tpu
from ag_jax.attention.kernels.tpu import grid as tpu_grid
from ag_jax.attention.patterns import neighbour
from ag_jax.attention.visibility import Band
from tests.cases import some

KEY = jax.random.key(5)
# JAX_PLATFORMS=cuda runs the GPU's kernels on one.
ON_GPU = jax.default_backend() == "gpu"
# Blocks of unequal sizes, of which each side has several.
SMALL_BLOCKS = grid.KernelBlocks(*(grid.Blocks(*sizes, 1, 1) for sizes in ((32, 16), (16, 32), (16, 16), (32, 16))))
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
    """The name of an implementation; `tpu_blocks` has blocks of 16, where a real TPU has one block of up to 512."""
    if request.param == "tpu_blocks":
        monkeypatch.setattr(tpu_grid, "BLOCK", 16)
        monkeypatch.setattr(tpu_grid, "_LANES", 8)
    return request.param


@dataclasses.dataclass(frozen=True)
class Case:
    """A call of attention.

    targets: of the first heads; a number is a neighbour, `any` a column for each query, and another text the name of
        chosen `Columns`; equal neighbours in the list are one.
    loss: of the guidance.
    bias: sizes of its first two axes, where 2 stands for all.
    rows: what each row of the batch holds, see `segment_ids`.
    blank: some queries have segment 9, which no key has.
    """

    queries: int
    keys: int
    causal: bool = False
    window: int | None = None
    targets: tuple[int | str, ...] = ()
    loss: str = "squared"
    bias: tuple[int, int] | None = None
    rate: float = 0.0
    rows: tuple[str, ...] = ("texts", "texts")
    blank: bool = False
    heads: int = 3
    width: int = 8

    @property
    def is_self(self):
        return self.queries == self.keys and not self.blank

    @property
    def shape(self):
        return len(self.rows), self.heads, self.queries, self.keys


SHORT, MIXED = ("full", "short"), ("gaps", "half", "empty")
CASES = {
    "everything": Case(
        37, 37, targets=("any", "some", "some", -2), bias=(2, 2), rate=0.2, rows=("gaps",) * 3, heads=5, width=12
    ),
    # With this width, a key block without a key of the query's text once made NaN: a rounded product beside one that is
    # not.
    "wide": Case(37, 37, bias=(1, 1), rows=MIXED, heads=2, width=64),
    # The TPU kernel's grid steps have two of these heads each, and the last one has no guided head.
    "wide_guided": Case(
        37, 37, targets=(1, "any", "some"), loss="cross_entropy", bias=(1, 1), rate=0.2, rows=MIXED, heads=6, width=64
    ),
    "causal": Case(45, 45, causal=True, targets=(-1, "some", 0)),
    "causal_dropout_bias": Case(45, 45, causal=True, bias=(2, 1), rate=0.2, rows=SHORT),
    "window": Case(45, 45, window=13, targets=(3, "some", "any"), bias=(1, 2), rate=0.2),
    "causal_window": Case(
        45, 45, causal=True, window=21, bias=(1, 1), targets=("some", "any", -1), loss="cross_entropy", rate=0.2
    ),
    "only_itself": Case(21, 21, window=1),
    "cross": Case(23, 53, targets=("some", "any"), bias=(2, 2), rate=0.2, blank=True),
    "cross_long_queries": Case(53, 9, targets=("all", "any", "any"), bias=(1, 2), rate=0.1, blank=True),
    "cross_causal": Case(55, 20, causal=True, targets=("any", "some"), loss="cross_entropy", bias=(1, 1), blank=True),
    "cross_causal_more_keys": Case(20, 55, causal=True, rows=SHORT),
    "cross_window": Case(70, 19, window=11, bias=(2, 1), targets=("some",), rows=SHORT),
    "sides_of_one_length": Case(37, 37, targets=(1, "some", -2), blank=True),
    "absent": Case(37, 37, targets=("none", "any", "some"), loss="cross_entropy", rows=MIXED),
}
OTHER_LOSS = {"squared": "cross_entropy", "cross_entropy": "squared"}
CASES |= {
    f"{name}_{OTHER_LOSS[case.loss]}": dataclasses.replace(case, loss=OTHER_LOSS[case.loss])
    for name, case in CASES.items()
    if case.targets
}


def segment_ids(case, length, seed):
    """Return segment ids of rows with three texts and padding, between them or not, with one text, or with none."""
    rng, place = np.random.default_rng(seed), np.arange(length)
    ids = np.zeros((len(case.rows), length), np.int32)
    for row, kind in zip(ids, case.rows, strict=True):
        if kind in ("texts", "gaps"):
            borders = np.sort(rng.choice(np.arange(2, length - 2), 3, replace=False))
            row[:] = np.append(1 + (place[:-1, None] >= borders[:2]).sum(1), 0) * (place < borders[2])
            if kind == "gaps":
                row[borders[:2]] = 0
        else:
            row[: {"full": length, "short": length - 3, "half": length // 2, "empty": 0}[kind]] = 1
    return ids


@functools.cache
def inputs_of(case, dtype="float32"):
    """Arrays by name, the segment ids of both sides, and by name which columns targets want.

    Columns of `any` lie in any text, or beyond all keys; queries may have none, too.
    """
    rng = np.random.default_rng(0)
    batch, heads, queries, keys = case.shape
    arrays = {
        "query": 3 * rng.standard_normal((batch, queries, heads, case.width)),  # so that attention is uneven
        "key": rng.standard_normal((batch, keys, heads, case.width)),
        "value": rng.standard_normal((batch, keys, heads, case.width)),
    }
    arrays = {name: array.astype(jnp.dtype(dtype)) for name, array in arrays.items()}
    if case.bias:
        sizes = [full if size > 1 else 1 for size, full in zip(case.bias, (batch, heads), strict=True)]
        arrays["bias"] = np.float32(rng.standard_normal((*sizes, queries, keys)))
    query_ids = segment_ids(case, queries, 1)
    key_ids = query_ids if case.is_self else segment_ids(case, keys, 2)
    if case.blank:
        query_ids = query_ids.copy()
        query_ids[0, 1:3], query_ids[1, -1] = 9, 9
    chosen = {name: rng.random(key_ids.shape) < share for name, share in (("some", 0.2), ("all", 2.0), ("none", 0.0))}
    chosen["any"] = rng.integers(-1, keys + 2, query_ids.shape).astype(np.int32)
    return arrays, (query_ids, key_ids), chosen


def sees(case, query_ids, key_ids, b, q):
    """Keys of a query, by the words of the interface."""
    found = []
    for k in range(case.keys):
        hidden = (case.causal and k > q) or (case.window is not None and abs(q - k) > case.window // 2)
        if key_ids[b, k] == query_ids[b, q] and not hidden:
            found.append(k)
    return found


def target_row(case, target, b, q, seen, query_ids, key_ids, chosen):
    """P of a query on its keys `seen`, and whether it has a target there: otherwise P is uniform."""
    # Padding of self-attention counts as one token; it is left out of losses.
    size = max(len(seen), 1) if query_ids[b, q] > 0 else 1
    if isinstance(target, int) or target == "any":
        column = chosen["any"][b, q] if target == "any" else q + target
        inside = column in seen and query_ids[b, q] > 0
        return np.array([float(k == column) if inside else 1 / size for k in seen]), inside
    text = [k for k in range(case.keys) if key_ids[b, k] == query_ids[b, q] and query_ids[b, q] > 0]
    wanted = [k for k in text if chosen[target][b, k]] or text
    if case.causal or case.window is not None:
        wanted = [k for k in wanted if k in seen]
        if not wanted:  # a row that sees none of its columns
            return np.full(len(seen), 1 / size), False
    return np.array([float(k in wanted) / max(len(wanted), 1) for k in seen]), bool(wanted)


@functools.cache
def counts(case):
    """Whether the distance of each guided row is compared, `BHQ`: the cross-entropy needs a target."""
    _, ids, chosen = inputs_of(case)
    found = np.ones((len(case.rows), len(case.targets), case.queries), bool)
    for b, h, q in np.ndindex(*found.shape) if case.loss == "cross_entropy" else ():
        found[b, h, q] = target_row(case, case.targets[h], b, q, sees(case, *ids, b, q), *ids, chosen)[1]
    return found


def cotangents(case):
    """Weights of output and statistics in the sum that is differentiated."""
    rng, (batch, heads, queries, _) = np.random.default_rng(7), case.shape
    of_statistics = 5 * rng.standard_normal((2, batch, len(case.targets), queries))
    of_statistics[0] *= counts(case)
    return (rng.standard_normal((batch, queries, heads, case.width)), *of_statistics)


@functools.cache
def oracle(case, dtype="float32"):
    """Output, statistics, and the gradients of a weighted sum of both, in float64."""
    arrays, ids, chosen = inputs_of(case, dtype)
    arrays = {name: np.asarray(array, np.float64) for name, array in arrays.items()}
    query, key, value = (arrays[side] for side in ("query", "key", "value"))
    is_kept = np.asarray(jax.jit(keep_attention, static_argnums=2)(KEY, case.rate, case.shape)) if case.rate else 1
    multiplier = np.broadcast_to(is_kept / (1 - case.rate), case.shape)
    bias = np.broadcast_to(arrays.get("bias", 0.0), case.shape)
    of_output, of_distance, of_overlap = cotangents(case)
    output, distance, overlap = np.zeros_like(of_output), np.zeros_like(of_distance), np.zeros_like(of_overlap)
    gradient = {side: np.zeros_like(array) for side, array in arrays.items()}
    dbias, root = np.zeros(case.shape), np.sqrt(case.width)
    for b, h, q in np.ndindex(*case.shape[:3]):
        if not (seen := sees(case, *ids, b, q)):
            continue
        scores = key[b, seen, h] @ query[b, q, h] / root + bias[b, h, q, seen]
        H = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        M = multiplier[b, h, q, seen]
        output[b, q, h] = (H * M) @ value[b, seen, h]
        dH = M * (value[b, seen, h] @ of_output[b, q, h])
        if h < len(case.targets):
            P, _ = target_row(case, case.targets[h], b, q, seen, *ids, chosen)
            distance[b, h, q], overlap[b, h, q] = -P @ np.log(H) if case.loss == "cross_entropy" else H @ H, H @ P
            if case.loss == "cross_entropy":
                dH = dH - of_distance[b, h, q] * P / H
            else:
                dH = dH + 2 * of_distance[b, h, q] * H + of_overlap[b, h, q] * P
        dS = H * (dH - H @ dH)
        gradient["query"][b, q, h] += dS @ key[b, seen, h] / root
        gradient["key"][b, seen, h] += np.outer(dS, query[b, q, h]) / root
        gradient["value"][b, seen, h] += np.outer(H * M, of_output[b, q, h])
        dbias[b, h, q, seen] = dS
    if case.bias:
        shared = tuple(axis for axis, size in enumerate(arrays["bias"].shape[:2]) if size == 1)
        gradient["bias"] = dbias.sum(shared, keepdims=True)
    return (output, distance, overlap)[: 3 if case.targets else 1], gradient


def traced(attend, case):
    """Return (arrays, segment ids of both sides) -> (the weighted sum of output and statistics, all of them)."""
    *_, chosen = inputs_of(case)

    def total(arrays, query_ids, key_ids):
        key_ids = query_ids if case.is_self else key_ids
        made = [(target, len([*same])) for target, same in itertools.groupby(case.targets)]
        targets = [
            neighbour(query_ids, one)
            if isinstance(one, int)
            else patterns.Pointer(jnp.asarray(chosen[one]))
            if one == "any"
            else patterns.columns(jnp.asarray(chosen[one]), key_ids)
            for one, _ in made
        ]
        guides = Guides(tuple(targets), tuple(count for _, count in made), loss=case.loss) if targets else None
        mixed, statistics = attend(
            *(arrays[side] for side in ("query", "key", "value")),
            query_ids,
            key_ids,
            bias=arrays.get("bias"),
            guides=guides,
            causal=case.causal,
            window=case.window,
            rate=case.rate,
            key=KEY,
        )
        found = (mixed, statistics.distance_BHQ, statistics.overlap_BHQ) if targets else (mixed,)
        weights = (jnp.asarray(weight, jnp.float32) for weight in cotangents(case))
        return sum((one * weight).sum() for one, weight in zip(found, weights, strict=False)), found

    return total


@functools.cache
def program(name, attend, case):
    """(arrays, segment ids of both sides) -> (output and statistics, gradients), compiled; `name` is for the cache."""
    compiled = jax.jit(jax.grad(traced(attend, case), has_aux=True))

    def run(*inputs):
        with jax.default_matmul_precision("highest"):
            gradient, found = compiled(*inputs)
        return jax.tree.map(lambda array: np.asarray(array, np.float64), (found, gradient))

    return run


def check(name, attend, case, dtype="float32"):
    """Compare an implementation with the oracle; errors are relative to the largest value."""
    arrays, ids, _ = inputs_of(case, dtype)
    found, gradient = program(name, attend, case)(arrays, *ids)
    wanted, wanted_gradient = oracle(case, dtype)
    # Gradients of blocks go by the rows' logarithmic sums, of about 20, and inherit their rounding several times.
    of_output, of_gradients = {"float32": (4e-6, 1e-5), "bfloat16": (1.2e-2, 2.4e-2)}[dtype]
    if case.targets:
        found, wanted = ((output, distance * counts(case), overlap) for output, distance, overlap in (found, wanted))
    for one, other, what in zip(found, wanted, ("output", "distance", "overlap"), strict=False):
        assert np.abs(other).max() > 1e-2, f"{what}: the comparison would be of nothing"
        allowed = (of_output if what == "output" else 4e-6) * np.abs(other).max()
        np.testing.assert_allclose(one, other, atol=allowed, err_msg=what)
    assert len(found) == len(wanted) and gradient.keys() == wanted_gradient.keys()
    for side, other in wanted_gradient.items():
        # With a single visible key, scores change nothing.
        assert case.window == 1 or np.abs(other).max() > 1e-2, f"d{side}: the comparison would be of nothing"
        allowed = of_gradients * (np.abs(other).max() or 1.0)
        np.testing.assert_allclose(gradient[side], other, atol=allowed, err_msg=f"d{side}")
    blind = [(b, q) for b, q in np.ndindex(len(case.rows), case.queries) if not sees(case, *ids, b, q)]
    one_loss = dataclasses.replace(case, loss="squared")
    assert bool(blind) == (case.blank or one_loss in (CASES["cross_window"], CASES["cross_causal_more_keys"]))
    for b, q in blind:
        assert not found[0][b, q].any() and not gradient["query"][b, q].any()
        assert all(not one[b, :, q].any() for one in found[1:])


# Where a kernel has several blocks, between the two kernels every case; otherwise those where the code differs.
USUAL = {
    "reference": ("everything", "wide", "only_itself", "cross_window", "absent"),
    "tpu": ("wide_guided",),
    "tpu_blocks": ("wide", "causal_window", "cross_long_queries", "cross_causal_more_keys", "cross_window"),
    "gpu": (),
    "gpu_blocks": ("wide", "causal_dropout_bias", "window", "cross_causal", "sides_of_one_length"),
}
HALF = (("reference", "everything"), ("tpu_blocks", "everything"), ("gpu_blocks", "everything"), ("gpu", "wide"))
PRODUCT = itertools.product(IMPLEMENTATIONS, CASES, ("float32", "bfloat16"))


@pytest.mark.parametrize(
    ("implementation", "case", "dtype"),
    some(
        PRODUCT,
        *((name, case, "float32") for name, cases in USUAL.items() for case in cases),
        *((*pair, "bfloat16") for pair in HALF),
    ),
    indirect=["implementation"],
)
def test_equals_float64(implementation, case, dtype):
    check(implementation, IMPLEMENTATIONS[implementation], CASES[case], dtype)


@pytest.mark.parametrize(
    ("window", "implementation"),
    some(itertools.product([None, 12], ["tpu_blocks", "gpu_blocks"]), (None, "gpu_blocks"), (12, "tpu_blocks")),
    indirect=["implementation"],
)
def test_blocks_outside_the_band_are_never_touched(implementation, window):
    """A key that is not a number ruins each block that reads it, even where its probability is 0."""
    length, edge = 64, 32  # the edge is one of blocks, whatever their size here
    case = Case(length, length, causal=window is None, window=window, rows=("full",), bias=(1, 1))
    arrays, ids, _ = inputs_of(case)
    run = program(implementation, IMPLEMENTATIONS[implementation], case)

    def poison(name, places):
        return arrays | {name: np.where(np.isin(np.arange(length), places)[None, :, None, None], np.nan, arrays[name])}

    keys = np.arange(edge + 16, length)
    (output,), gradient = run(poison("key", keys) | {"value": poison("value", keys)["value"]}, *ids)
    clean = slice(0, 16)  # these queries end before the poisoned keys, and further than a window away
    assert np.isfinite(output[:, clean]).all() and np.isfinite(gradient["query"][:, clean]).all()
    assert np.isfinite(gradient["bias"][:, :, clean]).all() and not np.isfinite(output).all()
    # Queries that do not reach back, or are hidden, must leave dK and dV alone.
    _, gradient = run(poison("query", np.arange(16)), *ids)
    for name in ("key", "value"):
        assert np.isfinite(gradient[name][:, edge:]).all() and not np.isfinite(gradient[name]).all()
    assert not gradient["bias"][:, :, :16, edge + 16 :].any()


IDS = jnp.ones((1, 5), jnp.int32)


@pytest.mark.parametrize(
    ("attend", "arguments", "named"),
    [
        (reference.attend, {"causal": True, "guides": Guides((neighbour(IDS, 1),), (1,))}, r"\+1"),
        (reference.attend, {"window": 3, "guides": Guides((neighbour(IDS, -2),), (1,))}, "-2"),
        (reference.attend, {"keys": 7}, r"key segments .*\(1, 7\), got \(1, 5\)"),
        (TPU, {"guides": Guides((neighbour(IDS, 1),), (1,), after_dropout=True)}, "after_dropout"),
    ],
)
def test_calls_that_are_refused(attend, arguments, named):
    arguments = dict(arguments)
    rows = [jnp.ones((1, length, 2, 4)) for length in (5, *[arguments.pop("keys", 5)] * 2)]
    with pytest.raises(ValueError, match=named):
        attend(*rows, IDS, IDS, **arguments)


@pytest.mark.parametrize(("held", "streamed"), [(4, 4), (8, 4), (3, 5)])
def test_block_ranges_are_those_of_the_pairs(held, streamed):
    """First, last and number of blocks, against every pair of positions."""
    blocks = -(-7 * streamed // held)
    query, key = np.ogrid[: blocks * held, : 7 * streamed]
    for left, right in ((None, None), (None, 0), (4, 4), (0, 0), (7, 0), (None, 3), (30, 2)):
        band, near = Band(left, right), np.ones((query.size, key.size), bool)
        near &= left is None or key >= query - left
        near &= right is None or key <= query + right
        np.testing.assert_array_equal(np.broadcast_to(band.contains(query, key), near.shape), near)
        np.testing.assert_array_equal(np.broadcast_to(band.reversed.contains(key, query), near.shape), near)
        seen = near.reshape(blocks, held, 7, streamed).any((1, 3))
        corners = (np.arange(blocks)[:, None] * held, held, np.arange(7)[None] * streamed, streamed)
        np.testing.assert_array_equal(np.broadcast_to(band.meets(*corners), seen.shape), seen)
        for block in np.flatnonzero(seen.any(1)):
            found = band.block_range(np.int32(block), held, streamed, 7)
            assert tuple(map(int, found)) == (seen[block].argmax(), 6 - seen[block][::-1].argmax())
        assert seen.sum(1).max() <= band.most_blocks(held, streamed, 7) <= seen.sum(1).max() + 1
