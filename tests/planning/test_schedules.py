"""Cycles of kernels from the compiler's schedules: by hand, and of kernels that libtpu compiles."""

import importlib.util

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.sharding import SingleDeviceSharding

from ag_jax.planning import compilation, hlo, schedules, topology

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install 'ag_jax[tpu]'"
)

# 4 bundles outside, a loop of 10 with 3 bundles and an inner loop of 4 with 3, one of which does nothing, and right
# after it a loop of 5 with 1.
TEXT = """= control target key start
LB: loop body
= control target key end

     0   :  { %s0 = inlined_call_operand.hbm [shape: bf16[8]] }
   0x1  LB: > { %s1 = sadd.s32 1, %s9 }
   0x2   : > { %p1 = scmp.ge.s32.totalorder %s1, 10 /* loop exit test */ }
   0x3  LB: >> { %s3 = sadd.s32 1, %s8  ;;  %p9 = scmp.ge.s32.totalorder %s3, 4 /* loop exit test */ }
   0x4   : >> { %v = vadd.f32 %v1, %v2 }
   0x5   :  {}
   0x5  PF: > { %4 = sbr.rel (!%p1) target = $region1 }
   0x6  LB: > { %s7 = sadd.s32 1, %s9  ;;  %p8 = scmp.ge.s32.totalorder %s7, 5 /* loop exit test */ }
   0x7   :  { %11 = sbr.rel (!%p8) target = $region2 }
   0x8   : > { %s5 = smov %s6 } /* behind the branch */
   0x9   :  {} /* exit bundle: %kernel.1 = custom-call() */
"""


def test_bundles_are_counted_with_the_iterations_of_their_loops():
    assert schedules.read(TEXT) == schedules.Schedule(4 + 10 * (3 + 4 * 3) + 5 * 1, 0)
    endless = TEXT.replace("%s1, 10 /* loop exit test */", "%s1, %s5")
    assert schedules.read(endless) == schedules.Schedule(4 + (3 + 4 * 3) + 5 * 1, 1)
    assert schedules.read("another format\n") is None
    unmarked = schedules.read(TEXT.replace("LB:", "  :"))
    assert unmarked.unknown_loops == 3, "loops without their marks are noticed by their exit tests"


def test_the_newest_schedule_of_the_same_kernel(tmp_path):
    line = '  %kernel.1 = bf16[32,8]{1,0} custom-call(%a, %b), custom_call_target="tpu_custom_call"'
    kernel = hlo.parse_instruction(line)
    assert schedules.find(kernel, tmp_path) is None
    for number, (shape, bundles) in enumerate((("32,8", 1), ("64,8", 2), ("32,8", 3)), 1):
        written = line.replace("32,8", shape).strip()
        (tmp_path / f"{number}-kernel.1-00-schedule-analysis_final_bundles.txt").write_text(
            f"Schedule analysis:\n\t9.00 scheduled bundles (100.00%): {written}\n"
        )
        text = "".join(f"   0x{at}   :  {{ }}\n" for at in range(bundles))
        (tmp_path / f"{number}-kernel.1-01-final_bundles.txt").write_text(text)
    assert schedules.find(kernel, tmp_path) == schedules.Schedule(3, 0)
    (tmp_path / "3-kernel.1-01-final_bundles.txt").unlink()
    assert schedules.find(kernel, tmp_path) is None, "not that of an older program"


def test_an_equal_kernel_has_the_schedule_of_the_one_that_was_compiled(tmp_path):
    line = '  %kernel.1 = bf16[32,8]{1,0} custom-call(%a), custom_call_target="tpu_custom_call", x={"body":"ABC"}'
    analysis = f"Schedule analysis:\n\t9.00 scheduled bundles (100.00%): {line.strip()}\n"
    (tmp_path / "1-kernel.1-00-schedule-analysis_final_bundles.txt").write_text(analysis)
    (tmp_path / "1-kernel.1-01-final_bundles.txt").write_text("   0x0   :  { }\n")
    second = line.replace("kernel.1", "kernel.2").replace("(%a)", "(%b)")
    assert schedules.find(hlo.parse_instruction(second), tmp_path) == schedules.Schedule(1, 0)
    for another in (second.replace("ABC", "ABD"), second.replace("32,8", "64,8"), second.replace("kernel", "other")):
        assert schedules.find(hlo.parse_instruction(another), tmp_path) is None


@needs_libtpu
@pytest.mark.parametrize(("calls", "is_declared"), [(1, False), (3, True)])
def test_a_kernel_that_is_counted_by_hand(calls, is_declared):
    """24 grid steps of a 512 x 512 x 512 product: each needs 2,048 cycles of v5e's four matrix units of 128 x 128.

    The schedule alone is some per cent below, because it does not count waiting for them.
    """
    by_hand = 24 * 512**3 / (4 * 128 * 128)

    def body(a, b, c):
        c[...] = jnp.dot(a[...], b[...], preferred_element_type=jnp.float32).astype(c.dtype)

    def product(a, b):
        spec = pl.BlockSpec((512, 512), lambda step: (step, 0))
        cost = pl.CostEstimate(flops=2 * 24 * 512**3, transcendentals=0, bytes_accessed=0)
        call = pl.pallas_call(
            body,
            grid=(24,),
            in_specs=[spec, pl.BlockSpec((512, 512), lambda step: (0, 0))],
            out_specs=spec,
            out_shape=jax.ShapeDtypeStruct((24 * 512, 512), jnp.bfloat16),
            name="product",
            cost_estimate=cost if is_declared else None,
        )
        return jax.lax.fori_loop(0, calls, lambda _, a: call(a, b), a)

    slice_ = topology.parse("v5e:2x2")
    place = SingleDeviceSharding(slice_.compile_only_devices()[0])
    arrays = (jax.ShapeDtypeStruct((rows, 512), jnp.bfloat16, sharding=place) for rows in (24 * 512, 512))
    program = hlo.HloModule(jax.jit(product).lower(*arrays).compile().as_text())
    found = compilation.kernel_cycles(program, slice_.chip)
    assert not found.missing and not found.with_unknown_loops and len(found.by_kernel) == 1
    assert (0.99 if is_declared else 0.85) < found.total / (calls * by_hand) < 1.2
