"""Which implementation of attention a run gets, and that it is the same on many devices as on one."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from ag_jax.attention import guidance
from ag_jax.attention.kernels import cudnn, dispatch, reference, self_check
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


@pytest.mark.parametrize(
    ("found", "name", "reason"),
    [
        ({}, "gpu", "the devices are NVIDIA H100"),
        ({"platform": "tpu", "kind": "TPU v5 lite"}, "tpu", "the devices are TPU v5 lite"),
        ({"platform": "cpu", "kind": "cpu"}, "reference", "there is no kernel for the platform cpu"),
        ({"capability": "7.5"}, "reference", "compute capability 8.0 and up, not 7.5"),
        ({"capability": "gfx90a"}, "reference", "NVIDIA GPUs"),
        ({"head_width": 257}, "reference", "heads of width 257 are wider than the 256 that fit"),
        ({"platform": "tpu", "kind": "TPU v3"}, "reference", "for TPU v4 and later, not TPU v3"),
        ({"platform": "tpu", "kind": "TPU v4", "length": 8192}, "tpu", "TPU v4"),
        ({"platform": "tpu", "kind": "TPU v4", "length": 8193}, "reference", "longer than the 8192"),
        ({"platform": "tpu", "kind": "TPU v6 lite", "length": 8193}, "tpu", "TPU v6 lite"),
        # Three heads of a device are one group of 192 lanes, which take 256; float32 takes half as much again.
        ({"platform": "tpu", "kind": "TPU v4", "length": 4096, "tensor": 4}, "tpu", "TPU v4"),
        ({"platform": "tpu", "kind": "TPU v4", "length": 4097, "tensor": 4}, "reference", "longer than the 4096"),
        ({"platform": "tpu", "kind": "TPU v4", "length": 5462, "dtype": "float32"}, "reference", "than the 5461"),
        ({"platform": "tpu", "kind": "TPU v4", "tensor": 8}, "reference", "12 heads cannot be split over 8 devices"),
        ({"after_dropout": True}, "reference", "probabilities=after_dropout"),
        ({"wanted": "reference"}, "reference", "model.attention=reference"),
    ],
)
def test_auto_takes_the_kernel_of_the_devices_or_says_why_not(found, name, reason):
    chosen = choose(**found)
    assert chosen.name == name and reason in chosen.reason
    assert (chosen.attend is reference.attend) == (name == "reference")
    if name != "reference":
        assert chosen.attend.kernel is {"tpu": tpu.attend, "gpu": gpu.attend}[name] and chosen.attend.rows == ("data",)


@pytest.mark.parametrize(
    ("wanted", "found", "reason"),
    [
        ("tpu", {}, "the devices are of the platform gpu"),
        ("gpu", {"platform": "cpu"}, "the devices are of the platform cpu"),
        ("gpu", {"capability": "7.0"}, "not 7.0"),
        ("gpu", {"after_dropout": True}, "after_dropout"),
    ],
)
def test_a_kernel_that_was_asked_for_and_cannot_is_an_error(wanted, found, reason):
    with pytest.raises(
        ValueError, match=f"model.attention={wanted} cannot be used: .*{reason}.*choose auto or reference"
    ):
        choose(wanted, **found)


def test_kernels_refuse_statistics_of_what_dropout_leaves():
    inputs, segments_BL = fused.make_inputs(2, 5, 4, 8, "full", "float32", None)
    guides = fused.make_guides(segments_BL).replace(after_dropout=True)
    with pytest.raises(ValueError, match="after_dropout needs model.attention=reference"):
        fused.IMPLEMENTATIONS["tpu"](*inputs.values(), *[jnp.asarray(segments_BL)] * 2, guides=guides)


@pytest.mark.parametrize("bias", some([(None,), ((1, 1),), ((2, 1),), ((1, 2),), ((2, 2),)], ((1, 2),)))
def test_many_devices_equal_one(eight_devices, bias):
    """Rows over four, heads over two: what dropout drops too, and the gradient of a bias that devices share."""
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3, devices=eight_devices)
    kernel = functools.partial(tpu.attend, interpret=True)
    spread = Fused(kernel, mesh, ("data", "fsdp"), "tensor")
    inputs, segments_BL = fused.make_inputs(8, 7, 4, 8, "packed", "float32", bias)
    guides = fused.make_guides(segments_BL)
    found, expected = (fused.run(attend, inputs, segments_BL, guides, 0.3) for attend in (spread, Fused(kernel)))
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, atol=3e-6), found, expected)


def test_other_masks_for_other_devices(eight_devices):
    """Each row of the batch is the same here; what is dropped of it is not."""
    mesh = jax.make_mesh((8, 1, 1), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3, devices=eight_devices)
    spread = Fused(functools.partial(tpu.attend, interpret=True), mesh, ("data", "fsdp"), "tensor")
    inputs, segments_BL = fused.make_inputs(1, 7, 4, 8, "full", "float32", None)
    arrays = [jnp.repeat(array, 8, axis=0) for array in (*inputs.values(), jnp.asarray(segments_BL))]
    mixed_BLHV, _ = jax.jit(lambda *arrays: spread(*arrays, arrays[-1], rate=0.5, key=fused.KEY))(*arrays)
    assert len(np.unique(np.asarray(mixed_BLHV).reshape(8, -1), axis=0)) == 8


def test_guidance_of_all_heads_or_of_one():
    """The kernels' sums are of all heads; the statistics are those of the guided."""
    inputs, segments_BL = fused.make_inputs(2, 5, 4, 8, "padded", "float32", None)
    all_guides = fused.make_guides(segments_BL)
    for guides in (guidance.Guides(all_guides.targets[:1], (4,)), guidance.Guides(all_guides.targets[1:2], (1,))):
        arrays = (*inputs.values(), *[jnp.asarray(segments_BL)] * 2)
        found, expected = (fused.IMPLEMENTATIONS[name](*arrays, guides=guides)[1] for name in ("tpu", "reference"))
        valid = np.asarray(segments_BL > 0)[:, None, :]
        for name in ("sum_of_squares_BHQ", "overlap_BHQ"):
            one, other = (np.where(valid, getattr(of, name), 0) for of in (found, expected))
            assert one.shape[1] == sum(guides.counts)
            np.testing.assert_allclose(one, other, atol=1e-6)


# --- The test of a kernel on its device ---------------------------------------------------------------


def on_cpu(config, inputs, change=lambda output: output):
    output, *statistics = gpu.attend(config, inputs, interpret=True)
    return change(output), *statistics


def fails(config, inputs):
    raise NotImplementedError("ptxas: unknown option\nand a long trace")


def inexact(config, inputs):
    return on_cpu(config, inputs, change=lambda output: 1.25 * output)


def nan_in_values_gradient(config, inputs):
    """Only the gradient of the values is not a number: the output is right."""

    @jax.custom_vjp
    def spoilt(value):
        return value

    spoilt.defvjp(lambda value: (value, None), lambda _, gradient: (gradient * jnp.nan,))
    return on_cpu(config, inputs._replace(value_BKA=spoilt(inputs.value_BKA)))


def inexact_without_dropout(config, inputs):
    return on_cpu(config, inputs, change=lambda output: output if config.rate else 1.5 * output)


def without_statistics_gradient(config, inputs):
    output, squares, overlap = gpu.attend(config, inputs, interpret=True)
    return output, jax.lax.stop_gradient(squares), overlap


@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        (on_cpu, None),
        (fails, "its test failed with NotImplementedError: ptxas: unknown option"),
        pytest.param(inexact, "its results in a test differ from the reference's by 25.", marks=pytest.mark.exhaustive),
        (nan_in_values_gradient, "its results in a test differ from the reference's by nan%"),
        (inexact_without_dropout, "its results in a test differ from the reference's by 50."),
        (without_statistics_gradient, "its results in a test differ from the reference's by"),
    ],
)
def test_a_kernel_is_tested_on_its_device(kernel, problem, monkeypatch, capsys):
    """`auto` falls back to the reference with one warning; a kernel that was asked for by name is an error."""
    monkeypatch.setattr(dispatch, "_gpu", lambda device, sizes: (kernel, None))
    here = types.SimpleNamespace(device_kind="a GPU", platform="gpu")
    monkeypatch.setattr(jax, "devices", lambda: [here])
    monkeypatch.setattr(self_check, "LENGTHS", (48,))
    mesh, sizes = one_device(here), dataclasses.replace(SIZES, heads=8, head_width=8, length=96)
    wanted = functools.partial(
        dispatch.choose, mesh=mesh, sizes=sizes, after_dropout=False, rows=("data",), heads="tensor"
    )
    chosen = [wanted("auto") for _ in range(2)]
    said = capsys.readouterr().err
    if problem is None:
        assert [choice.name for choice in chosen] == ["gpu"] * 2 and not said and wanted("gpu").name == "gpu"
        return
    assert [choice.attend for choice in chosen] == [reference.attend] * 2 and problem in chosen[0].reason
    assert said.count("warning") == 1 and "the platform gpu is not used, but the slower reference: " + problem in said
    with pytest.raises(ValueError, match=f"model.attention=gpu cannot be used: {problem}"):
        wanted("gpu")


def test_gpus_without_a_kernel_take_cudnn_if_it_passes_the_test(monkeypatch, capsys):
    here = types.SimpleNamespace(device_kind="an old GPU", platform="gpu", compute_capability="7.5")
    monkeypatch.setattr(jax, "devices", lambda: [here])
    monkeypatch.setattr(self_check, "LENGTHS", (48,))
    mesh, sizes = one_device(here), dataclasses.replace(SIZES, heads=8, head_width=8, length=96)
    choose = functools.partial(
        dispatch.choose, mesh=mesh, sizes=sizes, after_dropout=False, rows=("data",), heads="tensor"
    )
    assert choose("auto").attend is reference.attend, "there is no cuDNN here"
    on_cpu = cudnn.CuDnn("xla")
    monkeypatch.setattr(cudnn, "CuDnn", lambda: on_cpu)
    assert choose("auto").attend is on_cpu and choose("auto").name == "cudnn" and "not 7.5" in choose("auto").reason
    assert choose("reference").attend is reference.attend and not capsys.readouterr().err
    monkeypatch.setattr(dispatch, "_gpu", lambda device, sizes: (fails, None))
    assert choose("auto").attend is on_cpu
    assert "but cuDNN without guidance and attention dropout, and else the slower reference" in capsys.readouterr().err


@pytest.mark.parametrize("case", ["padded", "packed", "causal", "window", "cross", "guided", "dropout", "bias"])
def test_cudnn_equals_the_reference(case):
    """By XLA's implementation of the same function, and in the calls that cuDNN does not compute."""
    inputs, segments_BL = fused.make_inputs(3, 12, 4, 8, "padded" if case == "padded" else "packed", "bfloat16", None)
    segments_BL, settings = jnp.asarray(segments_BL), {}
    other_BL = jnp.where(segments_BL == 2, 0, segments_BL) if case == "cross" else segments_BL
    settings |= {"causal": True} if case == "causal" else {"window": 4} if case == "window" else {}
    settings |= {"guides": fused.make_guides(segments_BL)} if case == "guided" else {}
    settings |= {"rate": 0.3, "key": fused.KEY} if case == "dropout" else {}
    settings |= {"bias": jnp.linspace(-1, 1, 12)[None, None, None]} if case == "bias" else {}

    def run(attend):
        def total(*arrays):
            mixed, statistics = attend(*arrays, segments_BL, other_BL, **settings)
            return jnp.square(mixed.astype(jnp.float32)).sum(), (mixed, statistics)

        return jax.tree.map(np.asarray, jax.jit(jax.grad(total, (0, 1, 2), has_aux=True))(*inputs.values()))

    found, expected = run(cudnn.CuDnn("xla")), run(reference.attend)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    is_own = case not in ("guided", "dropout", "bias")
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        one, other = (array.astype(np.float32) for array in (one, other))
        np.testing.assert_allclose(one, other, atol=0.02 * np.abs(other).max() if is_own else 0)
    assert case != "cross" or not np.any(found[1][0][np.asarray(segments_BL) == 2])


@pytest.mark.parametrize("error", [ImportError("no triton"), AttributeError("no CompilerParams")])
def test_a_kernel_that_cannot_be_imported(error, monkeypatch, capsys):
    def raises(device, sizes):
        raise error

    monkeypatch.setattr(dispatch, "_gpu", raises)
    assert choose().name == "reference" and f"cannot be imported with jax {jax.__version__}: {error}" in choose().reason
    assert capsys.readouterr().err.count("warning") == 1
    with pytest.raises(ValueError, match="model.attention=gpu cannot be used: its kernel cannot be imported"):
        choose("gpu")
