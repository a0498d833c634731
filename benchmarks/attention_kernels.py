"""Measure time and memory of the attention implementations on the available device.

    python benchmarks/attention_kernels.py [--lengths 128 512 2048 8192] [--tokens 16384]

One layer of RoBERTa-12's attention (12 heads of 64, bfloat16) on rows without padding, by the reference, by the fused
kernel of the device and by `jax.nn.dot_product_attention` (through cuDNN on an NVIDIA GPU). The reference and the
kernel are measured plain, guided (one Next, one Prev, four First), with dropout 0.1, with both, and with both and the
loss cross_entropy. For each length:
the median time of a forward pass and of forward and backward together, measured in turns over all implementations;
FLOP/s, counting the L x L x N products that are needed (2 forward, 5 backward); the compiler's figure of temporary
memory; and the distance of the results from the reference's. An implementation that fails has the error instead.

Writes benchmarks/results/attention_kernels.json where there is a kernel to measure; elsewhere it only prints the
memory.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import record

from ag_jax.attention import patterns
from ag_jax.attention.config import GuidanceLoss
from ag_jax.attention.guidance import Guides
from ag_jax.attention.kernels import reference
from ag_jax.attention.kernels.dispatch import Fused
from ag_jax.attention.kernels.gpu import attention as gpu
from ag_jax.attention.kernels.tpu import attention as tpu

HEADS, WIDTH, RATE = 12, 64, 0.1
REPEATS, CALLS = 20, 10
KERNELS = {"gpu": gpu.attend, "tpu": tpu.attend}
VARIANTS = {
    "": {},
    "_guided": {"guided": True},
    "_dropout": {"rate": RATE},
    "_guided_dropout": {"guided": True, "rate": RATE},
    "_cross_entropy_dropout": {"guided": True, "rate": RATE, "loss": "cross_entropy"},
}
PRODUCTS = {"forward": 2, "forward_and_backward": 7}


def guides(rows: int, length: int, loss: GuidanceLoss) -> Guides:
    """Return guides for half of the heads, as by default: one Next, one Prev and four First."""
    segments_BL = jnp.ones((rows, length), jnp.int32)
    neighbours = [patterns.neighbour(segments_BL, offset) for offset in (1, -1)]
    first_BL = jnp.broadcast_to(jnp.arange(length)[None, :] == 0, (rows, length))
    return Guides((*neighbours, patterns.columns(first_BL, segments_BL)), (1, 1, 4), loss=loss)


def call(
    attend: Callable, rows: int, length: int, *, guided: bool = False, rate: float = 0.0, loss: GuidanceLoss = "squared"
) -> Callable:
    """Return a function of query, key and value that returns the output, and with `guided` the guidance statistics."""

    def results(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple[jax.Array, ...]:
        segments = jnp.ones((rows, length), jnp.int32)
        settings = {"guides": guides(rows, length, loss) if guided else None, "rate": rate, "key": jax.random.key(0)}
        mixed, found = attend(query, key, value, segments, segments, **settings)
        return (mixed, found.distance_BHQ, found.overlap_BHQ) if guided else (mixed,)

    return results


def library(implementation: str | None) -> Callable:
    """Return `jax.nn.dot_product_attention` as a function of query, key and value."""
    return lambda *arrays: (jax.nn.dot_product_attention(*arrays, implementation=implementation),)


def implementations(rows: int, length: int) -> dict[str, Callable]:
    """Return the implementations to measure on this device, by name."""
    kernel = KERNELS.get(jax.default_backend())
    found = {f"reference{name}": call(reference.attend, rows, length, **kind) for name, kind in VARIANTS.items()}
    if kernel is not None:
        found |= {f"kernel{name}": call(Fused(kernel), rows, length, **kind) for name, kind in VARIANTS.items()}
        found["library"] = library("cudnn" if jax.default_backend() == "gpu" else None)
    return found


def compile_both(results: Callable, arrays: tuple) -> dict[str, Any]:
    """Compile the forward pass, and forward and backward together.

    Both take (query, key, value, gradient of the output).
    """

    def both(*arrays):
        found, pull = jax.vjp(results, *arrays[:3])
        return found, pull((arrays[3], *map(jnp.ones_like, found[1:])))

    passes = {"forward": lambda *arrays: results(*arrays[:3]), "forward_and_backward": both}
    return {name: jax.jit(function).lower(*arrays).compile() for name, function in passes.items()}


def seconds(compiled: Any, arrays: tuple) -> float:
    """Return the mean time of a call in seconds, over `CALLS` calls in a row."""
    began = time.perf_counter()
    for _ in range(CALLS):
        result = compiled(*arrays)
    jax.block_until_ready(result)
    return (time.perf_counter() - began) / CALLS


def distance(found: tuple, wanted: tuple) -> float:
    """Return the largest difference of results or gradients, relative to the largest absolute value of the array."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    return max(float(jnp.abs(one - other).max() / jnp.abs(other).max()) for one, other in pairs)


def measure(length: int, tokens: int) -> dict[str, dict]:
    """Measure all implementations on rows of `length` tokens, about `tokens` in total; return the figures by name."""
    rows = max(1, tokens // length)
    draws = jax.random.normal(jax.random.key(length), (4, rows, length, HEADS, WIDTH), jnp.bfloat16)
    arrays, compiled, figures = tuple(draws), {}, {}
    for name, results in implementations(rows, length).items():
        try:
            both = compile_both(results, arrays)
            if jax.default_backend() in KERNELS:
                jax.block_until_ready([function(*arrays) for function in both.values()])
        except (RuntimeError, ValueError, NotImplementedError) as error:  # too little memory, or no such library
            figures[name] = {"failed": str(error).splitlines()[0][:200]}
            continue
        compiled[name] = both
        figures[name] = {which: {"temporary_bytes": both[which].memory_analysis().temp_size_in_bytes} for which in both}
    if jax.default_backend() in KERNELS:
        take_turns(compiled, arrays, figures, rows * length**2 * HEADS * WIDTH)
    return figures


def take_turns(compiled: dict, arrays: tuple, figures: dict, elements: int) -> None:
    """Time the implementations in turns; add times, speeds and distances from the reference to `figures`.

    elements: number of elements L x L x N of a product, over all rows.
    """
    passes = {(name, which): one for name, both in compiled.items() for which, one in both.items()}
    times = {key: [] for key in passes}
    for _ in range(REPEATS):
        for key, one in passes.items():
            times[key].append(seconds(one, arrays))
    for (name, which), measured in times.items():
        median = statistics.median(measured)
        figures[name][which] |= {
            "median_seconds": median,
            "fastest_seconds": min(measured),
            "flops_per_second": 2 * PRODUCTS[which] * elements / median,
        }
    for name, both in compiled.items():
        plain = name.replace("kernel", "reference").replace("library", "reference")
        if plain != name and plain in compiled:
            pair = (one["forward_and_backward"](*arrays) for one in (both, compiled[plain]))
            figures[name]["distance_from_reference"] = distance(*pair)


def main() -> None:
    """Measure every length, print the figures and save them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512, 2048, 8192])
    parser.add_argument("--tokens", type=int, default=16_384)
    arguments = parser.parse_args()
    by_length = {}
    for length in arguments.lengths:
        by_length[length] = measure(length, arguments.tokens)
        for name, figures in by_length[length].items():
            print(length, name, figures, flush=True)
    if jax.default_backend() not in KERNELS:
        print(f"Nothing was timed or recorded: there is no kernel for {jax.default_backend()}.")
        return
    conditions = {"heads": HEADS, "width": WIDTH, "dtype": "bfloat16", "tokens": arguments.tokens, "dropout": RATE}
    record.save("attention_kernels", {**conditions, "repeats": REPEATS, "calls": CALLS, "lengths": by_length})


if __name__ == "__main__":
    main()
