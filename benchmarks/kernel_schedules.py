"""Print how many cycles the TPU kernels of attention take, by the compiler's schedules; no TPU is needed, but libtpu.

    python benchmarks/kernel_schedules.py [--slices v4:2x2x1 v5e:2x2 v5p:2x2x1 v6e:2x2] [--lengths 512]

One layer of RoBERTa-12's attention (12 heads of 64, bfloat16) on 16,384 tokens without padding is compiled for each
generation of TPUs, forward and backward: plain, guided (one Next, one Prev, four First), with dropout 0.1, with both,
and with both and the loss cross_entropy. The cycles are those of `ag_jax.planning.schedules`, for all grid steps of a
call. They do not include waiting for memory or for the matrix units.

Writes benchmarks/results/kernel_schedules.json.
"""

import argparse

import jax
import jax.numpy as jnp
import record
from attention_kernels import HEADS, VARIANTS, WIDTH, call

from ag_jax.attention.kernels.dispatch import Fused
from ag_jax.attention.kernels.tpu import attention
from ag_jax.planning import compilation, topology
from ag_jax.planning.hlo import HloModule

TOKENS = 16_384


def cycles(device: jax.Device, of: topology.Topology, length: int, **variant: object) -> dict[str, float]:
    """Return the cycles of a call by kernel, `forward` and `backward`, with `length` tokens in each row."""
    rows = TOKENS // length
    sharding = jax.sharding.SingleDeviceSharding(device)
    side = jax.ShapeDtypeStruct((rows, length, HEADS, WIDTH), jnp.bfloat16, sharding=sharding)
    forward = call(Fused(attention.attend), rows, length, **variant)

    def both(query: jax.Array, key: jax.Array, value: jax.Array, gradient: jax.Array) -> tuple:
        results, backward = jax.vjp(forward, query, key, value)
        return results, backward((gradient, *(jnp.ones_like(row) for row in results[1:])))

    compiled = jax.jit(both).lower(side, side, side, side).compile()
    found = compilation.kernel_cycles(HloModule(compiled.as_text()), of.chip.per_device())
    if found.missing or found.with_unknown_loops:
        raise SystemExit(f"no schedule, or none that can be read, of {found.missing or found.with_unknown_loops}")
    backward = sum(count for name, count in found.by_kernel.items() if "gradient" in name)
    return {"forward": found.total - backward, "backward": backward}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slices", nargs="+", default=["v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2"])
    parser.add_argument("--lengths", nargs="+", type=int, default=[512])
    given = parser.parse_args()
    topology.silence_libtpu()
    rows = []
    for name in given.slices:
        of = topology.parse(name)
        device = of.compile_only_devices()[0]
        for length in given.lengths:
            for variant, settings in VARIANTS.items():
                found = cycles(device, of, length, **settings)
                times = {kind: round(count / of.chip.per_device().clock * 1e6, 1) for kind, count in found.items()}
                rows.append({"slice": name, "length": length, "variant": variant.strip("_") or "plain", **times})
                print(rows[-1], flush=True)
    print(
        record.save(
            "kernel_schedules",
            {"compiler": topology.versions(), "unit": "microseconds", "tokens": TOKENS, "calls": rows},
        )
    )


if __name__ == "__main__":
    main()
