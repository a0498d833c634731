"""Costs read from HLO: by hand, against the compiler's own sums, and loops against the same without loops."""

import jax
import jax.numpy as jnp
import pytest

from ag_jax.planning import costs
from ag_jax.planning.hlo import HloArray, HloModule

TEXT = """HloModule by_hand, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[]{:T(128)} parameter(0)
  %b = f32[]{:T(128)} parameter(1)
  ROOT %add = f32[]{:T(128)} add(%a, %b)
}

%one_layer (stack: f32[5,8,128], number: s32[]) -> f32[8,128] {
  %stack = f32[5,8,128]{2,1,0:T(8,128)} parameter(0)
  %number = s32[]{:T(128)} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  %slice = f32[1,8,128]{2,1,0:T(8,128)} dynamic-slice(%stack, %number, %zero, %zero), dynamic_slice_sizes={1,8,128}
  ROOT %row = f32[8,128]{1,0:T(8,128)} bitcast(%slice)
}

%body (carry: (s32[], f32[8,128], f32[5,8,128])) -> (s32[], f32[8,128], f32[5,8,128]) {
  %carry = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}, /*index=2*/f32[5,8,128]{2,1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%carry), index=0
  %x = f32[8,128]{1,0:T(8,128)} get-tuple-element(%carry), index=1
  %w = f32[5,8,128]{2,1,0:T(8,128)} get-tuple-element(%carry), index=2
  %layer = f32[8,128]{1,0:T(8,128)S(1)} fusion(%w, %i), kind=kLoop, calls=%one_layer
  %product = f32[8,8]{1,0:T(8,128)S(1)} convolution(%x, %layer), dim_labels=bf_oi->bf
  %summed = f32[8,8]{1,0:T(8,128)S(1)} all-reduce(%product), replica_groups={{0,1,2,3}}, to_apply=%sum
  %back = f32[8,128]{1,0:T(8,128)} dot(%summed, %layer), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %next = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}, f32[5,8,128]{2,1,0:T(8,128)}) tuple(%i, %back, %w)
}

%condition (carry.1: (s32[], f32[8,128], f32[5,8,128])) -> pred[] {
  %carry.1 = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}, f32[5,8,128]{2,1,0:T(8,128)}) parameter(0)
  %limit = s32[]{:T(128)} constant(5)
  %at = s32[]{:T(128)} get-tuple-element(%carry.1), index=0
  ROOT %less = pred[]{:T(512)} compare(%at, %limit), direction=LT
}

ENTRY %main (w.1: f32[5,8,128], x.1: f32[8,128]) -> f32[32,128] {
  %w.1 = f32[5,8,128]{2,1,0:T(8,128)} parameter(0)
  %x.1 = f32[8,128]{1,0:T(8,128)} parameter(1)
  %start = s32[]{:T(128)} constant(0)
  %init = (s32[]{:T(128)}, f32[8,128]{1,0:T(8,128)}, f32[5,8,128]{2,1,0:T(8,128)}) tuple(%start, %x.1, %w.1)
  %loop = (s32[], f32[8,128]{1,0:T(8,128)}, f32[5,8,128]{2,1,0}) while(%init), condition=%condition, body=%body
  %out = f32[8,128]{1,0:T(8,128)} get-tuple-element(%loop), index=1
  ROOT %gathered = f32[32,128]{1,0:T(8,128)} all-gather(%out), replica_groups=[2,4]<=[8], dimensions={0}
}
"""


def test_by_hand():
    found = costs.costs(HloModule(TEXT), devices=8)
    product = 2 * 8 * 8 * 128
    assert found.flops == 5 * 2 * product and found.once_flops == 2 * product
    tile = 8 * 128 * 4
    # A turn reads one layer and its number, reads x, and writes back; what lies in S(1) is on the chip.
    assert found.hbm_bytes == 5 * (tile + 4 + tile + tile) + (tile + 4 * tile)
    of = {one.kind: one for one in found.collectives}
    assert of["all-reduce"] == costs.Collective("all-reduce", 4, 5, 5 * 256, 5 * 256 * 2 * 3 / 4)
    assert of["all-gather"] == costs.Collective("all-gather", 4, 1, tile, 3 * tile)
    assert found.sent == 5 * 384 + 3 * tile and not found.unknown_loops


def test_bytes_that_a_fusion_reads():
    """An array that it only renames is read as a whole; a slice that converts reads the type that is stored."""
    renamed = TEXT.replace("fusion(%w, %i), kind=kLoop, calls=%one_layer", "fusion(%x), kind=kLoop, calls=%same")
    same = """%same (p: f32[8,128]) -> f32[8,128] {
  %p = f32[8,128]{1,0:T(8,128)} parameter(0)
  ROOT %q = f32[8,128]{1,0:T(8,128)} bitcast(%p)
}

"""
    tile = 8 * 128 * 4
    assert costs.costs(HloModule(renamed.replace("%body (carry", same + "%body (carry")), 8).hbm_bytes == 20 * tile
    converted = TEXT.replace("%slice = f32[1,8,128]{2,1,0:T(8,128)}", "%slice = bf16[1,8,128]{2,1,0:T(8,128)(2,1)}")
    assert costs.costs(HloModule(converted), 8).hbm_bytes == costs.costs(HloModule(TEXT), 8).hbm_bytes


@pytest.mark.parametrize(
    ("start", "turns"),
    [
        ("constant(0)", 5),
        ("constant(1)", 4),  # the first turn was moved out of the loop
        ("copy(%one)\n  %one = s32[]{:T(128)} copy(%two)\n  %two = s32[]{:T(128)} constant(2)", 3),
        ("add(%one, %one)\n  %one = s32[]{:T(128)} constant(1)", None),
    ],
)
def test_a_loop_may_start_from_another_number_than_zero(start, turns):
    once = TEXT.replace("%start = s32[]{:T(128)} constant(0)", f"%start = s32[]{{:T(128)}} {start}")
    at = "%at = s32[]{:T(128)} get-tuple-element(%carry.1), index=0"  # of which a copy may be compared
    for text in (once, once.replace(at, at.replace("%at", "%at.1") + "\n  %at = s32[] copy(%at.1)")):
        found = costs.costs(HloModule(text), 8)
        assert found.flops == (turns or 1) * found.once_flops
        assert found.unknown_loops == (() if turns else ("loop",))
    endless = costs.costs(HloModule(text.replace("constant(5)", "parameter(1)")), 8)
    assert endless.unknown_loops == ("loop",) and endless.flops == endless.once_flops


def test_an_outer_loop_hands_on_the_start_of_an_inner_loop():
    """Three outer turns; the inner loop starts at 2 of 5 in each, unless the outer loop changes that number."""
    types = "(s32[], f32[8,128]{1,0:T(8,128)}, f32[5,8,128]{2,1,0:T(8,128)}, s32[])"
    outer = f"""%around (all: {types}) -> {types} {{
  %all = {types} parameter(0)
  %turn = s32[] get-tuple-element(%all), index=0
  %x.2 = f32[8,128]{{1,0:T(8,128)}} get-tuple-element(%all), index=1
  %w.2 = f32[5,8,128]{{2,1,0:T(8,128)}} get-tuple-element(%all), index=2
  %first = s32[] get-tuple-element(%all), index=3
  %init = (s32[], f32[8,128], f32[5,8,128]) tuple(%first, %x.2, %w.2)
  %loop = (s32[], f32[8,128], f32[5,8,128]) while(%init), condition=%condition, body=%body
  %new = f32[8,128]{{1,0:T(8,128)}} get-tuple-element(%loop), index=1
  ROOT %handed = {types} tuple(%turn, %new, %w.2, HANDED)
}}

%until (all.1: {types}) -> pred[] {{
  %all.1 = {types} parameter(0)
  %three = s32[] constant(3)
  %turn.1 = s32[] get-tuple-element(%all.1), index=0
  ROOT %less.1 = pred[] compare(%turn.1, %three), direction=LT
}}

ENTRY %main (w.1: f32[5,8,128], x.1: f32[8,128]) -> {types} {{
  %w.1 = f32[5,8,128]{{2,1,0:T(8,128)}} parameter(0)
  %x.1 = f32[8,128]{{1,0:T(8,128)}} parameter(1)
  %zero.1 = s32[] constant(0)
  %two = s32[] constant(2)
  %begin = {types} tuple(%zero.1, %x.1, %w.1, %two)
  ROOT %outer = {types} while(%begin), condition=%until, body=%around
}}
"""
    whole = TEXT[: TEXT.index("ENTRY")] + outer
    same, changed = (costs.costs(HloModule(whole.replace("HANDED", name)), 8) for name in ("%first", "%turn"))
    assert same.flops == 3 * 3 * same.once_flops and not same.unknown_loops
    assert changed.unknown_loops == ("loop",)


BETWEEN = """HloModule slices

ENTRY %main (x: f32[256,1024]) -> f32[256,1024] {
  %x = f32[256,1024]{1,0:T(8,128)} parameter(0)
  %after = token[] after-all()
  %part = f32[64,1024]{1,0:T(8,128)} reduce-scatter(%x), replica_groups={{0,1,2,3}}, dimensions={0}, to_apply=%sum
  %send = (f32[64,1024]{1,0:T(8,128)}, u32[], token[]) send(%part, %after), channel_id=2, is_host_transfer=true, \
frontend_attributes={_xla_megascale_target="TARGET",_xla_megascale_transfer_type="ALL_REDUCE"}
  %sent = token[] send-done(%send), channel_id=2, is_host_transfer=true
  %receive = (f32[64,1024]{1,0:T(8,128)}, u32[], token[]) recv(%after), channel_id=1, is_host_transfer=true, \
frontend_attributes={_xla_megascale_target="TARGET",_xla_megascale_transfer_type="ALL_REDUCE"}
  %received = (f32[64,1024]{1,0:T(8,128)}, token[]) recv-done(%receive), channel_id=1, is_host_transfer=true
  %summed = f32[64,1024]{1,0:T(8,128)} get-tuple-element(%received), index=0
  ROOT %whole = f32[256,1024]{1,0:T(8,128)} all-gather(%summed), replica_groups={{0,1,2,3}}, dimensions={0}
}
"""


@pytest.mark.parametrize(("target", "slices"), [("{1,2}x{0:3}", 2), ("{1:4}x{0:3}", 4), ("{1:2,5}x{0}", 3)])
def test_messages_between_slices(target, slices):
    """A quarter of the array leaves the slice, of which a ring sends 2 (n - 1) / n; the others are between chips."""
    found = costs.costs(HloModule(BETWEEN.replace("TARGET", target)), devices=4 * slices)
    whole = 256 * 1024 * 4
    of = {one.kind: one for one in found.collectives}
    assert of.keys() == {"reduce-scatter", "all-gather", "all-reduce between slices"}
    sent = 2 * (slices - 1) / slices * whole / 4
    assert of["all-reduce between slices"] == costs.Collective("all-reduce between slices", slices, 1, whole / 4, sent)
    assert found.sent_between_slices == sent and found.sent == 3 / 4 * whole + 3 * whole / 4
    with pytest.raises(ValueError, match="message send"):
        costs.costs(HloModule(BETWEEN.replace("_xla_megascale_target", "_xla_other_target")), devices=8)


@pytest.mark.parametrize(
    ("groups", "devices"),
    [
        ("{{0,2},{1,3}}", 2),
        ("[4,2]<=[8]", 2),
        ("mesh['a'=2,'b'=4] {'b'}", 4),
        ("mesh['a'=2,'b'=4] {'a','b'}", 8),
        ("{}", 8),
    ],
)
def test_groups(groups, devices):
    found = costs.costs(HloModule(TEXT.replace("{{0,1,2,3}}", groups)), devices=8)
    assert {one.devices for one in found.collectives if one.kind == "all-reduce"} == {devices}


def test_padding_of_tiles():
    assert HloArray("f32", (3, 5), "1,0:T(8,128)").physical_bytes == 8 * 128 * 4
    assert HloArray("f32", (3, 5), "0,1:T(8,128)").physical_bytes == 8 * 128 * 4
    assert HloArray("bf16", (2, 9, 130), "2,1,0:T(8,128)(2,1)").physical_bytes == 2 * 16 * 256 * 2
    assert HloArray("f32", (3, 5), "1,0").physical_bytes == 60 == HloArray("f32", (3, 5), "").bytes
    assert not HloArray("f32", (3, 5), "1,0:T(8,128)S(1)").in_hbm and HloArray("f32", (), ":T(128)").in_hbm


def test_estimated_cycles_and_kernels_count_the_turns_of_their_loop():
    """10 cycles in a loop of 5, 7 outside; a kernel in the loop declares 3,000 FLOPs and reads 64 bytes again.

    One that declares fewer bytes than its arrays have touches a part of them.
    """
    assert costs.costs(HloModule(TEXT), 8).estimated_cycles is None
    kernel = (
        '  %attend = f32[8,128]{1,0:T(8,128)} custom-call(%x), custom_call_target="tpu_custom_call", '
        'backend_config={"cost_estimate":{"flops":"3000","bytes_accessed":"8256"}}\n'
    )
    text = TEXT.replace(
        "dim_labels=bf_oi->bf\n", 'dim_labels=bf_oi->bf, backend_config={"estimated_cycles":"10"}\n' + kernel
    ).replace("dimensions={0}\n", 'dimensions={0}, backend_config={"estimated_cycles":"7"}\n')
    before, found = costs.costs(HloModule(TEXT), 8), costs.costs(HloModule(text), 8)
    assert found.estimated_cycles == 5 * 10 + 7
    ((called, times, flops),) = costs.kernels(HloModule(text))
    assert (called.name, times, flops) == ("attend", 5, 3000)
    assert found.hbm_bytes - before.hbm_bytes == 5 * (2 * 8 * 128 * 4 + 64)
    part = costs.costs(HloModule(text.replace('"8256"', '"2048"')), 8)
    assert part.hbm_bytes - before.hbm_bytes == pytest.approx(5 * 2048)


def test_a_loop_on_the_cpu_counts_its_turns():
    """Loss and gradient of seven equal layers."""

    def loss(weights_NDD, x_RD):
        return jax.lax.scan(lambda x, weight: (jnp.tanh(x @ weight), None), x_RD, weights_NDD)[0].sum()

    shapes = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((7, 64, 64), (48, 64)))
    found = costs.costs(HloModule(jax.jit(jax.grad(loss)).lower(*shapes).compile().as_text()), devices=1)
    assert found.flops == pytest.approx(3 * 7 * 2 * 48 * 64 * 64, rel=0.1)  # the first layer's input needs no gradient
    assert not found.unknown_loops and found.once_flops < found.flops / 3


def test_of_two_branches_the_one_with_more_products_counts():
    """In a loop, whose turns multiply it."""

    def program(flags_N, x):
        def turn(x, flag):
            return jax.lax.cond(flag, lambda x: x @ x @ x, lambda x: x @ x + x, x), None

        return jax.lax.scan(turn, x, flags_N)[0]

    text = jax.jit(program).lower(jnp.zeros(3, bool), jnp.zeros((16, 16))).compile().as_text()
    assert "conditional(" in text
    found = costs.costs(HloModule(text), 1)
    assert found.flops == 3 * 2 * 2 * 16**3 and found.once_flops == 2 * 2 * 16**3
    assert 3 * 2 * 3 * 1024 <= found.bytes < 2 * 3 * 2 * 3 * 1024
