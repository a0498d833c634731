"""A test of an attention kernel on the device at hand, by which `dispatch` decides whether a run may use it.

Covered are the output, both statistics of guidance, for the loss of the run, and the gradients of queries, keys and
values: for a row of several texts, rows of one and of two blocks of the TPU kernel, groups of heads with and without a
guided head, with guidance and dropout, and without both. Not covered are a bias, causal attention and windows.

Shape letters: B batch, Q query position, K key position, H head, W width of a head.
"""

import functools
import itertools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ag_jax.attention.config import GuidanceLoss
from ag_jax.attention.guidance import Guides
from ag_jax.attention.kernels import reference
from ag_jax.attention.kernels.interface import Attend
from ag_jax.attention.patterns import Columns, neighbour

LENGTHS = (512, 640)  # tokens of the rows that are tested, if the run's are longer: one block on a TPU, and two
HEADS, GUIDED = 8, 4  # with heads of width 32, 64, 96 or 128, half of the groups of the TPU kernel are guided
TOLERANCE = 0.03  # of a result, relative to its norm; bfloat16 itself makes differences of .005


@functools.lru_cache(maxsize=8)
def problem(
    attend: Attend,
    head_width: int,
    length: int,
    dtype: str,
    loss: GuidanceLoss = "squared",
    *,
    only_plain: bool = False,
) -> str | None:
    """Return how a kernel fails a test on this process's first device, as a clause for a message; None if it passes.

    The output and the gradients must be those of the reference. They may differ, or the kernel may not compile, if its
    compiler is of another version than those that it was tested with.

    attend: the kernel, for a single device.
    head_width: width of a head.
    length: the most tokens of a row of the run.
    dtype: floating-point type of queries, keys and values.
    loss: of the guidance.
    only_plain: leave out guidance and dropout, for implementations that leave them to the reference.
    """
    for rows, is_plain in itertools.product(sorted({min(length, row) for row in LENGTHS}), (True, False)):
        if is_plain or not only_plain:
            difference = _difference(attend, None if is_plain else loss, _row(rows, head_width, dtype))
            if difference is not None:
                return difference
    return None


def _difference(attend: Attend, loss: GuidanceLoss | None, arrays: tuple[Array, ...]) -> str | None:
    """Return in words how a kernel fails on test arrays or differs there from the reference; None if it passes.

    loss: of the guidance; None to test the kernel without guidance and dropout.
    """
    try:
        results = _results(attend, loss, *arrays)
    except Exception as error:  # of the import, the compiler or the device, each with types of its own
        lines = str(error).strip().splitlines() or [""]
        return f"its test failed with {type(error).__name__}: {lines[0][:300]}"
    expected = _results(reference.attend, loss, *arrays)
    differences = [
        np.linalg.norm(one - other) / np.linalg.norm(other) for one, other in zip(results, expected, strict=True)
    ]
    worst = np.max(differences)  # NaN if any is NaN, unlike `max`
    return None if worst <= TOLERANCE else f"its results in a test differ from the reference's by {worst:.1%}"


def warn(name: str, substitute: str, reason: str) -> None:
    """Print, once in a process, that the kernel for the devices is not used, what is used instead, and why."""
    _print_once(f"warning: the attention kernel for the platform {name} is not used, but {substitute}: {reason}")


@functools.cache
def _print_once(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _row(length: int, head_width: int, dtype: str) -> tuple[Array, ...]:
    """Return test arrays: queries, keys, values and factors of the output, all `BQHW` with B = 1, and segment ids."""
    samples = np.random.default_rng(0).standard_normal((4, 1, length, HEADS, head_width))
    segments_BQ = 1 + (np.arange(length)[None] >= 2 * length // 3)
    return *jnp.asarray(samples, dtype), jnp.asarray(segments_BQ, jnp.int32)


def _results(
    attend: Attend, loss: GuidanceLoss | None, query: Array, key: Array, value: Array, factor: Array, segments_BQ: Array
) -> list:
    """Return the output, guidance statistics and gradients of an attention implementation on test arrays, float32."""
    first_BK = jnp.pad(jnp.diff(segments_BQ), [(0, 0), (1, 0)], constant_values=1) > 0
    targets = (neighbour(segments_BQ, 1), Columns(first_BK.astype(jnp.float32), jnp.ones_like(first_BK)))
    settings: Any = {}
    if loss is not None:
        guides = Guides(targets, (GUIDED // 2,) * 2, loss=loss)
        settings = {"guides": guides, "rate": 0.1, "key": jax.random.key(0)}

    def total(query: Array, key: Array, value: Array):
        mixed, statistics = attend(query, key, value, segments_BQ, segments_BQ, **settings)
        if statistics is None:
            return (mixed * factor).astype(jnp.float32).sum(), (mixed,)
        distance, overlap = statistics.distance_BHQ, statistics.overlap_BHQ
        return (mixed * factor).astype(jnp.float32).sum() + distance.sum() - overlap.sum(), (mixed, distance, overlap)

    gradients, outputs = jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))(query, key, value)
    return [np.asarray(array, np.float32) for array in (*outputs, *gradients)]
