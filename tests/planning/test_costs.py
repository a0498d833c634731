"""Costs read from HLO: by hand, against the compiler's own sums, and loops against the same without loops."""

import importlib.util

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ag_jax.planning import costs, topology
from ag_jax.planning.hlo import HloArray, HloModule
from ag_jax.training.sharding import MeshConfig, make_mesh

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install 'ag_jax[tpu]'"
)

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
    found = costs.costs(
        HloModule(TEXT.replace("%start = s32[]{:T(128)} constant(0)", f"%start = s32[]{{:T(128)}} {start}")), 8
    )
    assert found.flops == (turns or 1) * found.once_flops
    assert found.unknown_loops == (() if turns else ("loop",))


def test_a_condition_may_compare_a_copy_of_the_counter():
    at = "%at = s32[]{:T(128)} get-tuple-element(%carry.1), index=0"
    found = costs.costs(HloModule(TEXT.replace(at, at.replace("%at", "%at.1") + "\n  %at = s32[] copy(%at.1)")), 8)
    assert found.flops == 5 * found.once_flops and not found.unknown_loops


def test_a_loop_that_carries_its_counter_alone():
    text = """HloModule alone

%body (i: s32[]) -> s32[] {
  %i = s32[] parameter(0)
  %one = s32[] constant(1)
  ROOT %next = s32[] add(%i, %one)
}

%condition (i.1: s32[]) -> pred[] {
  %i.1 = s32[] parameter(0)
  %limit = s32[] constant(7)
  ROOT %less = pred[] compare(%i.1, %limit), direction=LT
}

ENTRY %main () -> s32[] {
  %start = s32[] constant(2)
  ROOT %loop = s32[] while(%start), condition=%condition, body=%body
}
"""
    program = HloModule(text)
    main = program.computations["main"]
    assert program.repeats(main.root, main) == 5


def test_a_start_from_outside_the_outer_loop():
    """An outer loop of 3 turns hands on the start of the inner loop, as element 3 of what it carries."""
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
    found = costs.costs(HloModule(whole.replace("HANDED", "%first")), 8)
    assert found.flops == 3 * 3 * found.once_flops and not found.unknown_loops
    changed = costs.costs(HloModule(whole.replace("HANDED", "%turn")), 8)
    assert changed.unknown_loops == ("loop",)
    # From another loop's result, whose element has the number of what the outer loop hands on.
    other = "%other = (s32[], s32[], s32[], s32[]) while(%all), condition=%until, body=%body\n  "
    from_result = whole.replace(
        "%first = s32[] get-tuple-element(%all)", f"{other}%first = s32[] get-tuple-element(%other)"
    )
    assert "loop" in costs.costs(HloModule(from_result.replace("HANDED", "%first")), 8).unknown_loops


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


def test_messages_between_unknown_slices():
    text = BETWEEN.replace("_xla_megascale_target", "_xla_other_target")
    with pytest.raises(ValueError, match="the message send names no slices: this version of libtpu writes another"):
        costs.costs(HloModule(text), devices=8)


def test_a_fusion_that_hands_an_array_on_reads_it_all():
    handed_on = TEXT.replace(
        "%layer = f32[8,128]{1,0:T(8,128)S(1)} fusion(%w, %i), kind=kLoop, calls=%one_layer",
        "%layer = f32[8,128]{1,0:T(8,128)S(1)} fusion(%x), kind=kLoop, calls=%same",
    ).replace(
        "%body (carry",
        "%same (p: f32[8,128]) -> f32[8,128] {\n  %p = f32[8,128]{1,0:T(8,128)} parameter(0)\n"
        "  ROOT %q = f32[8,128]{1,0:T(8,128)} bitcast(%p)\n}\n\n%body (carry",
    )
    tile = 8 * 128 * 4
    assert costs.costs(HloModule(handed_on), 8).hbm_bytes == 5 * 3 * tile + 5 * tile


def test_a_slice_that_converts_reads_the_type_that_is_stored():
    converted = TEXT.replace("%slice = f32[1,8,128]{2,1,0:T(8,128)}", "%slice = bf16[1,8,128]{2,1,0:T(8,128)(2,1)}")
    assert costs.costs(HloModule(converted), 8).hbm_bytes == costs.costs(HloModule(TEXT), 8).hbm_bytes


def test_a_loop_of_unknown_length_is_named():
    found = costs.costs(HloModule(TEXT.replace("constant(5)", "parameter(1)")), devices=8)
    assert found.unknown_loops == ("loop",) and found.flops == found.once_flops


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


def stack(layers, width, rows, unrolled):
    """Loss and gradient of `layers` equal layers, as a loop or one after the other."""

    def loss(weights_NDD, x_RD):
        def layer(x_RD, weight_DD):
            return jnp.tanh(x_RD @ weight_DD), None

        return jax.lax.scan(layer, x_RD, weights_NDD, unroll=unrolled)[0].sum()

    shapes = jax.ShapeDtypeStruct((layers, width, width), jnp.float32), jax.ShapeDtypeStruct((rows, width), jnp.float32)
    return jax.grad(loss), shapes


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
    gradient, shapes = stack(7, 64, 48, unrolled=1)
    compiled = jax.jit(gradient).lower(*shapes).compile()
    found = costs.costs(HloModule(compiled.as_text()), devices=1)
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


@needs_libtpu
def test_loops_on_a_tpu_against_the_compilers_sums(monkeypatch):
    """The compiler counts a loop's body once: 3 turns that it reports as one. Counted so, both give the same bytes.

    A fifth is allowed, because the compiler counts an operand again for each use inside a fusion.
    """
    device = topology.parse("v5e:1x1").compile_only_devices()[0]
    place = NamedSharding(Mesh([device], ("x",)), PartitionSpec())
    programs, found, reported, product = {}, {}, {}, 2 * 1024 * 512 * 512
    for unrolled in (1, 3):
        gradient, shapes = stack(3, 512, 1024, unrolled)
        compiled = jax.jit(gradient, in_shardings=(place, place), out_shardings=place).lower(*shapes).compile()
        programs[unrolled], reported[unrolled] = HloModule(compiled.as_text()), compiled.cost_analysis()
        found[unrolled] = costs.costs(programs[unrolled], 1)
    loop, flat = found[1], found[3]
    # Without a loop the compiler sees that the first layer's input needs no gradient.
    assert (loop.flops, flat.flops, flat.once_flops) == (9 * product, 8 * product, 8 * product)
    assert reported[1]["flops"] == pytest.approx(3 * product, rel=0.02)
    assert reported[3]["flops"] == pytest.approx(8 * product, rel=0.02)
    assert loop.bytes > 1.3 * reported[1]["bytes accessed"]
    monkeypatch.setattr(HloModule, "repeats", lambda self, loop, around: 1)
    for unrolled in (1, 3):
        once = costs.costs(programs[unrolled], 1)
        assert 0.8 < once.bytes / reported[unrolled]["bytes accessed"] < 1.0
        assert once.flops == found[unrolled].once_flops


@needs_libtpu
def test_messages_between_four_devices():
    devices = topology.parse("v5e:2x2").compile_only_devices()
    mesh = Mesh(devices, ("x",))
    rows, everywhere = NamedSharding(mesh, PartitionSpec("x")), NamedSharding(mesh, PartitionSpec())
    step = jax.jit(lambda x, w: x.T @ (x @ w), in_shardings=(rows, everywhere), out_shardings=everywhere)
    shapes = jax.ShapeDtypeStruct((4096, 256), jnp.float32), jax.ShapeDtypeStruct((256, 512), jnp.float32)
    (message,) = costs.costs(HloModule(step.lower(*shapes).compile().as_text()), 4).collectives
    assert (message.kind, message.devices, message.bytes) == ("all-reduce", 4, 256 * 512 * 4)
    assert message.sent == 2 * 3 / 4 * message.bytes


@needs_libtpu
@pytest.mark.parametrize("slices", [2, 3])
def test_messages_of_a_compiled_program_between_slices(slices):
    """Each device sends its part of the sum over its slice, and no more."""
    devices = topology.parse("v5e:2x2", slices).compile_only_devices()
    mesh = make_mesh(MeshConfig(), devices)
    rows, everywhere = NamedSharding(mesh, PartitionSpec("data")), NamedSharding(mesh, PartitionSpec())
    step = jax.jit(lambda x, w: x.T @ (x @ w), in_shardings=(rows, everywhere), out_shardings=everywhere)
    shapes = jax.ShapeDtypeStruct((96 * 64, 256), jnp.float32), jax.ShapeDtypeStruct((256, 512), jnp.float32)
    found = costs.costs(HloModule(step.lower(*shapes).compile().as_text()), len(devices))
    between = [one for one in found.collectives if one.kind == "all-reduce between slices"]
    assert [(one.devices, one.bytes) for one in between] == [(slices, 256 * 512 * 4 / 4)]
    assert found.sent_between_slices == 2 * (slices - 1) / slices * 256 * 512
