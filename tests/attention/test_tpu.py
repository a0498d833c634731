"""What can be said of the TPU kernels without a TPU, besides their results: that they compile, and what memory they
take.

Needs the libtpu wheel, `pip install '.[tpu]'`, and no TPU.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import SingleDeviceSharding

from ag_jax.attention.guidance import Guides
from ag_jax.attention.kernels.dispatch import Fused
from ag_jax.attention.kernels.interface import KernelConfig
from ag_jax.attention.kernels.tpu import attention as tpu
from ag_jax.attention.kernels.tpu import grid
from ag_jax.attention.patterns import Columns, Pointer, neighbour
from ag_jax.attention.visibility import Band
from ag_jax.planning import topology

SLICES = {"v4": "v4:2x2x1", "v5e": "v5e:2x2", "v5p": "v5p:2x2x1", "v6e": "v6e:2x2"}


@functools.cache
def device(chip):
    try:
        return topology.parse(SLICES[chip]).compile_only_devices()[0]
    except ValueError as error:
        pytest.skip(str(error))


def compiled(chip, rows, length, heads, width, dtype="bfloat16", bias=False, keys=None, loss="squared", **band):
    """Forward and backward with guidance and dropout; `keys` is their number, if it is not `length`."""
    place = SingleDeviceSharding(device(chip))

    def array(*shape, dtype=dtype):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=place)

    def total(query, key, value, bias, query_segments, key_segments, columns, weights, seed):
        if keys is None:
            key_segments = query_segments
        neighbours = () if keys else (neighbour(query_segments, -1),)
        targets = (*neighbours, Columns(weights, jnp.ones(rows, bool)), Pointer(columns))
        mixed, statistics = Fused(tpu.attend)(
            *(query, key, value, query_segments, key_segments),
            bias=bias,
            guides=Guides(targets, (1,) * len(targets), loss=loss),
            rate=0.1,
            key=jax.random.key(seed),
            **band,
        )
        return mixed.astype(jnp.float32).sum() + (statistics.distance_BHQ + statistics.overlap_BHQ).sum()

    lengths = (length, keys or length)
    qkv = (array(rows, size, heads, width) for size in (length, keys or length, keys or length))
    of_bias = array(rows, 1, *lengths, dtype="float32") if bias else None
    segments = (array(rows, size, dtype="int32") for size in lengths)
    of_targets = (array(rows, length, dtype="int32"), array(rows, lengths[1], dtype="float32"))
    gradient = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2, 3) if bias else (0, 1, 2)))
    return gradient.lower(*qkv, of_bias, *segments, *of_targets, array(dtype="int32")).compile()


CALLS = {
    "tile": {"length": 512},
    "tile_cross_entropy": {"length": 512, "loss": "cross_entropy"},
    "prime": {"length": 37, "heads": 3, "bias": True},
    "blocks": {"length": 600, "width": 48},
    "causal": {"length": 512, "causal": True},
    "causal_blocks": {"length": 1500, "causal": True, "bias": True},
    "window_blocks": {"length": 2048, "window": 256},
    "window_blocks_cross_entropy": {"length": 2048, "window": 256, "bias": True, "loss": "cross_entropy"},
    "cross": {"length": 102, "keys": 512, "bias": True},
    "cross_blocks": {"length": 1100, "keys": 600, "bias": True, "loss": "cross_entropy"},
    "cross_long_queries": {"length": 1100, "keys": 37},
    "cross_causal": {"length": 700, "keys": 1300, "causal": True},
    "one_query": {"length": 1, "keys": 300},
}


@pytest.mark.parametrize("chip", SLICES)
@pytest.mark.parametrize("name", CALLS)
def test_compiles(chip, name):
    settings = {"heads": 4, "width": 64} | CALLS[name]
    text = compiled(chip, 2, **settings).as_text()
    # Two of the four heads are a group. Between two texts two heads are guided, so the other group has its own calls.
    parts = 2 if "keys" in settings else 1
    calls, expected = text.count("tpu_custom_call"), 2 * parts + settings.get("bias", False)
    assert calls >= 2 if name in ("tile", "prime", "blocks") else calls == expected
    matrix = f"[2,{settings['heads']},{settings['length']},{settings.get('keys', settings['length'])}]"
    assert settings["length"] == 1 or matrix not in text


def test_a_band_costs_what_its_blocks_cost():
    """The declared cost: nearly half for causal attention, and a share that falls with the length for a window."""

    def pairs(**settings):
        return grid.Grid(KernelConfig(4, 4, 64, 4096, 4096, 0.0, 0, **settings), 2, 64).pairs

    assert pairs() == 4096**2
    assert pairs(band=Band(None, 0)) == 512**2 * (8 * 9 // 2)
    assert pairs(band=Band(128, 128)) == 512**2 * (8 + 2 * 7)


@pytest.mark.parametrize(("queries", "keys"), [(512, 512), (1100, 1100), (700, 1600)])
@pytest.mark.parametrize("streamed", ["keys", "queries"])
def test_blocks_that_are_read_several_times_count_as_often(queries, keys, streamed):
    """Pallas copies a block when its index differs from that of the grid step before."""
    one = KernelConfig(heads=4, all_heads=4, width=64, queries=queries, keys=keys, rate=0.0, guided_heads=0)
    of = grid.Grid(one, examples=2, width=64)
    sides = {"queries": of.queries, "keys": of.keys}
    held = next(side for name, side in sides.items() if name != streamed)
    at, moved, before = (of.by_query if streamed == "keys" else of.by_key), 0, {}
    names = {"query": 2, "key": 3, "value": 3}
    for example, group, held_block, step in itertools.product(
        range(2), range(of.groups), range(held.blocks), range(sides[streamed].blocks)
    ):
        place = at(example, group, held_block, step)
        for name, axis in names.items():
            index = (place.example, place.group, place[axis])
            side = of.keys if axis == 3 else of.queries
            moved += 0 if before.get(name) == index else side.block * of.group * 64 * 2
            before[name] = index
    arrays = {
        name: jax.ShapeDtypeStruct((2, (of.keys if axis == 3 else of.queries).padded, 256), "bfloat16")
        for name, axis in names.items()
    }
    assert of.moved_bytes(arrays, [], (streamed,)) == moved


def test_memory_grows_with_the_length_and_not_with_its_square():
    """At every length a few arrays of the size of the queries (1.5 to 2 with libtpu 0.0.42, 3 to 3.5 with 0.0.50).

    Of 32 rows, because arrays of one row stay in the chip's vector memory.
    """
    arrays = {}
    for length in (2048, 4096, 8192):
        queries = 32 * length * 4 * 64 * 4  # bytes, in float32
        arrays[length] = compiled("v5e", 32, length, 4, 64).memory_analysis().temp_size_in_bytes / queries
    assert 0.5 < arrays[2048] < 4
    assert arrays[8192] < 1.5 * arrays[2048], "4 times as much if memory grew with the square of the length"


@pytest.mark.parametrize(
    ("heads", "width", "group"),
    [(12, 64, 2), (16, 48, 8), (12, 48, 12), (3, 64, 3), (8, 128, 1), (4, 96, 4), (1, 64, 1)],
)
def test_groups_of_heads_fill_lanes_or_take_all(heads, width, group):
    assert grid.head_group(heads, width) == group


@pytest.mark.parametrize(
    ("length", "block"), [(1, 1), (37, 37), (512, 512), (513, 384), (600, 384), (1024, 512), (1025, 384), (8192, 512)]
)
def test_blocks_pad_little(length, block):
    assert grid.block_length(length) == block
    padded = -(-length // block) * block
    assert grid.block_length(padded) == block, "a padded row is cut the same"
    assert padded - length < 128 * -(-length // grid.BLOCK)
