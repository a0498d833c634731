"""Which implementation of attention a run gets, and that it is the same on many devices as on one."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from ag_jax.attention.kernels import cudnn, dispatch, interface, reference, self_check
from ag_jax.attention.kernels.dispatch import Fused
from ag_jax.attention.kernels.gpu import attention as gpu
from ag_jax.attention.kernels.tpu import attention as tpu
from tests.attention import test_kernels as fused
from tests.cases import some

SIZES = dispatch.Sizes(heads=12, head_width=64, length=512, dtype="bfloat16")


def choose(wanted="auto", kind="NVIDIA H100", platform="gpu", capability="9.0", **more):
    device = types.SimpleNamespace(device_kind=kind, platform=platform, compute_capability=capability)
    sizes = {name: more.pop(name) for name in ("heads", "head_width", "length", "dtype") if name in more}
    settings = {"after_dropout": False, "rows": ("data",), "heads": "tensor"} | more
    mesh = one_device(device, settings.pop("tensor", 1))
    return dispatch.choose(wanted, mesh, dataclasses.replace(SIZES, **sizes), **settings)


def one_device(device, tensor=1):
    return types.SimpleNamespace(devices=np.array([[[device]]]), shape={"data": 1, "fsdp": 1, "tensor": tensor})


V4 = {"platform": "tpu", "kind": "TPU v4"}


@pytest.mark.parametrize(
    ("found", "name", "named"),
    [
        ({}, "gpu", "NVIDIA H100"),
        ({"head_width": 256, "capability": "8.0"}, "gpu", ""),
        ({"platform": "cpu", "kind": "cpu"}, "reference", "cpu"),
        ({"capability": "7.5"}, "reference", "7.5"),
        ({"capability": "gfx90a"}, "reference", "gfx90a"),
        ({"head_width": 257}, "reference", "257"),
        ({"platform": "tpu", "kind": "TPU v3"}, "reference", "TPU v3"),
        (V4 | {"length": 8192}, "tpu", ""),
        (V4 | {"length": 8193}, "reference", "longer than the 8192"),
        ({"platform": "tpu", "kind": "TPU v6 lite", "length": 8193}, "tpu", ""),
        # Three heads of a device are one group of 192 lanes, which take 256; float32 takes half as much again.
        (V4 | {"length": 4096, "tensor": 4}, "tpu", ""),
        (V4 | {"length": 4097, "tensor": 4}, "reference", "longer than the 4096"),
        (V4 | {"length": 5462, "dtype": "float32"}, "reference", "than the 5461"),
        (V4 | {"tensor": 8}, "reference", "12 heads"),
        ({"after_dropout": True}, "reference", "after_dropout"),
    ],
)
def test_auto_takes_the_kernel_of_the_devices_or_says_why_not(found, name, named):
    chosen = choose(**found)
    assert chosen.name == name and named in chosen.reason
    assert (chosen.attend is reference.attend) == (name == "reference")
    if name != "reference":
        assert chosen.attend.kernel is {"tpu": tpu.attend, "gpu": gpu.attend}[name] and chosen.attend.rows == ("data",)


@pytest.mark.parametrize(
    ("wanted", "found", "named"),
    [
        ("tpu", {}, "platform gpu"),
        ("gpu", {"capability": "7.0"}, "7.0"),
        ("gpu", {"after_dropout": True}, "after_dropout"),
    ],
)
def test_a_kernel_that_was_asked_for_and_cannot_is_an_error(wanted, found, named):
    with pytest.raises(ValueError, match=f"model.attention={wanted} .*{named}"):
        choose(wanted, **found)


@pytest.mark.parametrize("bias", some([(None,), ((1, 1),), ((2, 1),), ((1, 2),), ((2, 2),)], ((1, 2),)))
def test_many_devices_equal_float64(eight_devices, bias):
    """Rows over four, heads over two: what dropout drops too, and the gradient of a bias that devices share."""
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3, devices=eight_devices)
    spread = Fused(functools.partial(tpu.attend, interpret=True), mesh, ("data", "fsdp"), "tensor")
    loss = "cross_entropy" if bias in (None, (2, 2)) else "squared"
    case = fused.Case(9, 9, targets=("any", "some", -2), loss=loss, bias=bias, rate=0.3, rows=("gaps",) * 8, heads=4)
    fused.check(f"spread{bias}", spread, case)


# --- The test of a kernel on its device ---------------------------------------------------------------


def plain(config, inputs, change=lambda output: output):
    """A kernel in plain JAX, whose output may be changed."""
    query, key, value = (array.reshape(*array.shape[:2], config.heads, -1) for array in inputs[:3])
    H = reference.probabilities(query, key, *inputs[3:5])
    places = np.ogrid[tuple(map(slice, H.shape))]
    kept = config.keep(inputs.scalars, *places) if config.rate else True
    mixed = jnp.einsum("bhqk,bkhw->bqhw", jnp.where(kept, H, 0) * config.dropout_scale, value.astype(jnp.float32))
    output = change(mixed.astype(value.dtype).reshape(inputs.query_BQA.shape))
    if not config.guided:
        return output, ()
    P = interface.target(inputs.columns_BHQ[..., None], inputs.weights_BHK[:, :, None], places[3])
    overlap = (H * P).sum(-1)
    if config.is_cross_entropy:  # the logarithms of H are scores of which the logarithmic sum is 0
        scores = jnp.log(jnp.where(H > 0, H, 1.0))
        return output, (jnp.zeros_like(overlap), (scores * P).sum(-1), jax.lax.stop_gradient(overlap))
    return output, ((H * H).sum(-1), overlap)


def fails(config, inputs):
    raise NotImplementedError("ptxas: unknown option\nand a long trace")


def nan_in_values_gradient(config, inputs):
    """Only the gradient of the values is not a number: the output is right."""

    @jax.custom_vjp
    def spoilt(value):
        return value

    spoilt.defvjp(lambda value: (value, None), lambda _, gradient: (gradient * jnp.nan,))
    return plain(config, inputs._replace(value_BKA=spoilt(inputs.value_BKA)))


def inexact_without_dropout(config, inputs):
    return plain(config, inputs, change=lambda output: output if config.rate else 1.5 * output)


def inexact_with_dropout(config, inputs):
    return plain(config, inputs, change=lambda output: 1.04 * output if config.rate else output)


def without_statistics_gradient(config, inputs):
    output, sums = plain(config, inputs)
    return output, (jax.lax.stop_gradient(sums[0]), sums[1]) if sums else ()


def on_this_gpu(monkeypatch, kernel, loss="squared"):
    """`dispatch.choose` on a GPU with this kernel; the setting is its argument."""
    here = types.SimpleNamespace(device_kind="a GPU", platform="gpu", compute_capability="7.5")
    monkeypatch.setattr(jax, "devices", lambda: [here])
    monkeypatch.setattr(self_check, "LENGTHS", (48,))
    if kernel is not None:
        monkeypatch.setattr(dispatch, "_gpu", lambda device, sizes: (kernel, None))
    mesh, sizes = one_device(here), dataclasses.replace(SIZES, heads=8, head_width=8, length=96, loss=loss)
    settings = {"mesh": mesh, "sizes": sizes, "after_dropout": False, "rows": ("data",), "heads": "tensor"}
    return lambda setting: dispatch.choose(setting, **settings)


@pytest.mark.parametrize(
    ("kernel", "loss", "problem"),
    [
        (plain, "cross_entropy", None),
        (fails, "squared", "NotImplementedError: ptxas: unknown option"),
        (nan_in_values_gradient, "squared", "nan%"),
        (inexact_without_dropout, "squared", "50."),
        (inexact_with_dropout, "squared", "3.9%"),
        (without_statistics_gradient, "squared", "reference's by"),
    ],
)
def test_a_kernel_is_tested_on_its_device(kernel, loss, problem, monkeypatch, capsys):
    """`auto` falls back to the reference with one warning; a kernel that was asked for by name is an error."""
    chosen_for = on_this_gpu(monkeypatch, kernel, loss)
    chosen = [chosen_for("auto") for _ in range(2)]
    said = capsys.readouterr().err
    if problem is None:
        assert [choice.name for choice in chosen] == ["gpu"] * 2 and not said and chosen_for("gpu").name == "gpu"
        return
    assert [choice.attend for choice in chosen] == [reference.attend] * 2 and problem in chosen[0].reason
    assert said.count("warning") == 1 and problem in said
    with pytest.raises(ValueError, match=f"model.attention=gpu .*{problem}"):
        chosen_for("gpu")


def test_gpus_without_a_kernel_take_cudnn_if_it_passes_the_test(monkeypatch, capsys):
    choose = on_this_gpu(monkeypatch, None)
    assert choose("auto").attend is reference.attend, "there is no cuDNN here"
    on_cpu = cudnn.CuDnn("xla")
    monkeypatch.setattr(cudnn, "CuDnn", lambda: on_cpu)
    assert choose("auto").attend is on_cpu and choose("auto").name == "cudnn" and "7.5" in choose("auto").reason
    assert choose("reference").attend is reference.attend and not capsys.readouterr().err
    choose = on_this_gpu(monkeypatch, fails)
    assert choose("auto").attend is on_cpu and "cuDNN" in capsys.readouterr().err


@pytest.mark.parametrize("case", ["padded", "window", "cross"])
def test_cudnn_equals_the_reference(case):
    """cuDNN is replaced by XLA's implementation of the same function."""
    rows = ("half", "full", "empty") if case == "padded" else ("gaps",) * 3
    arrays, (segments_BL, _), _ = fused.inputs_of(fused.Case(12, 12, rows=rows, heads=4), "bfloat16")
    segments_BL = jnp.asarray(segments_BL)
    other_BL = jnp.where(segments_BL == 2, 0, segments_BL) if case == "cross" else segments_BL
    settings = {"padded": {}, "window": {"window": 4}, "cross": {"causal": True}}[case]

    def results(attend, arrays):
        def total(*arrays):
            mixed, statistics = attend(*arrays, segments_BL, other_BL, **settings)
            assert statistics is None
            return jnp.square(mixed.astype(jnp.float32)).sum(), mixed

        return jax.grad(total, (0, 1, 2), has_aux=True)(*arrays)

    both = jax.jit(lambda *arrays: [results(attend, arrays) for attend in (cudnn.CuDnn("xla"), reference.attend)])
    found, expected = jax.tree.map(lambda array: np.asarray(array, np.float32), both(*arrays.values()))
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, atol=0.02 * np.abs(other).max())
    assert case != "cross" or not np.any(found[1][np.asarray(segments_BL) == 2])


@pytest.mark.parametrize("setting", ["guides", "rate", "bias", "float32"])
def test_calls_that_cudnn_does_not_compute_are_those_of_the_reference(setting):
    case = fused.Case(
        9,
        9,
        targets=(1,) if setting == "guides" else (),
        rate=0.3 if setting == "rate" else 0.0,
        bias=(1, 1) if setting == "bias" else None,
    )
    arrays, ids, _ = fused.inputs_of(case, "float32" if setting == "float32" else "bfloat16")
    programs = [
        str(jax.make_jaxpr(fused.traced(attend, case))(arrays, *ids))
        for attend in (cudnn.CuDnn("xla"), reference.attend)
    ]
    assert programs[0] == programs[1]


def test_a_kernel_that_cannot_be_imported(monkeypatch, capsys):
    error = AttributeError("no CompilerParams")

    def raises(device, sizes):
        raise error

    monkeypatch.setattr(dispatch, "_gpu", raises)
    assert choose().name == "reference" and f"{jax.__version__}: {error}" in choose().reason
    assert capsys.readouterr().err.count("warning") == 1
    with pytest.raises(ValueError, match=f"model.attention=gpu .*{error}"):
        choose("gpu")
