"""The plan of a config: refusals, the search, arithmetic, and real compilations for TPUs."""

import importlib.util
import json

import jax
import pytest

from ag_jax.command_line import cli
from ag_jax.command_line.verbs import Verb
from ag_jax.planning import plan, search, text, topology
from ag_jax.planning.compilation import Compiled, KernelCycles, Memory, TooLarge, too_large
from ag_jax.planning.costs import Collective, Costs
from ag_jax.planning.roofline import roofline
from ag_jax.pretraining import config as pretraining_config
from ag_jax.training import chips
from tests.cases import pairwise
from tests.verbs import verb_of

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs libtpu: pip install 'ag_jax[tpu]'"
)
GIB = 2**30
SETTINGS = {
    "data.sequence_length": 128,
    "data.tokenizer.vocabulary_size": 512,
    "model.layers": 2,
    "model.heads": 2,
    "model.width": 128,
    "training.batch_size": 16,
    "training.steps": 1000,
}


def config(**more) -> pretraining_config.ExperimentConfig:
    flat = pretraining_config.default_config()
    flat.update_from_flattened_dict(SETTINGS | more)
    return pretraining_config.parse(flat)


def compiled(gibibytes: float, kernels=None, **costs) -> Compiled:
    zero = {"flops": 0.0, "once_flops": 0.0, "hbm_bytes": 0.0, "bytes": 0.0, "collectives": (), "unknown_loops": ()}
    memory = Memory(gibibytes * GIB, 0.0, 0.0, 0.0)
    return Compiled(memory, Costs(**(zero | costs)), kernels or KernelCycles({}), {}, 1.0)


@pytest.mark.parametrize(
    ("message", "needed", "available"),
    [
        ("the total memory required for HLO temporaries (22.19G) exceeds available HBM (15.75G). HLO", 22.19, 15.75),
        ("Ran out of memory in memory space hbm. Used 512.5M of 15.48G hbm. Exceeded", 512.5 / 1024, 15.48),
    ],
)
def test_what_a_compiler_without_memory_says(message, needed, available):
    assert too_large(message) == TooLarge(needed * GIB, available * GIB)
    assert too_large("INVALID_ARGUMENT: something else (12G)") is None


@pytest.mark.parametrize(
    ("bend", "first", "sizes"),
    pairwise([0.0, 0.01, -0.01], [1, 5, 32, 400], [(1.4, 0.65), (0.1, 0.031), (12.0, 0.5)]),
)
def test_the_search_finds_the_largest(bend, first, sizes):
    """Memory as a line, a little bent; from a start that fits and from one that does not."""
    tried, (fixed, a_row) = [], sizes

    def outcome(rows):
        size = fixed + a_row * rows ** (1 + bend)
        return compiled(size) if size <= 15.75 else TooLarge(size * GIB, 15.75 * GIB)

    def probe(rows):
        tried.append(rows)
        return outcome(rows)

    best, found = search.largest(probe, {first: outcome(first)}, fixed * GIB * 0.95, 15.75 * GIB)
    truth = max(rows for rows in range(1, 2000) if isinstance(outcome(rows), Compiled))
    assert len(tried) <= search.MOST_PROBES and first not in tried
    assert sum(isinstance(outcome(rows), Compiled) for rows in tried) <= search.MOST_FITTING
    assert isinstance(found, Compiled) and best <= truth and best >= (1 - search.NEAR) * truth - 1
    refused = TooLarge(40 * GIB, 15.75 * GIB)
    assert search.largest(lambda rows: refused, {4: refused}, 20 * GIB, 15.75 * GIB) == (0, None)


def test_roofline_by_hand():
    """A core of v3: 61.5 TFLOP/s, 450 GB/s of HBM, 164 GB/s of links; one of TPU7x: half of its chip's 100 Gbit/s."""
    limits = roofline(chips.tpu("v3").per_device(), flops=6.15e12, hbm_bytes=90e9, sent_bytes=16.4e9)
    assert (limits.products, limits.memory, limits.messages) == (0.1, 0.2, 0.1)
    assert limits.seconds == 0.2 and limits.binds == "memory"
    device = chips.tpu("tpu7x").per_device()
    limits = roofline(device, flops=1153.5e12, hbm_bytes=0.0, sent_bytes=0.0, network_bytes=12.5e9)
    assert (limits.products, limits.network, limits.seconds) == (1.0, 2.0, 2.0) and limits.binds == "network"


def test_bounds_by_hand():
    """A million FLOPs are nothing here: HBM binds with 819 GB, a second; 16 rows of 128 tokens in it."""
    step = compiled(1.0, flops=1e6, hbm_bytes=819e9, collectives=(Collective("all-reduce", 8, 1, 1e9, 1.75e9),))
    found = plan.estimates(config(), topology.parse("v5e-8"), step)
    assert found.roofline.seconds == 1.0 and found.roofline.messages == 1.75e9 / 200e9
    # The program's own count misses the model's products: the model's own are taken.
    assert found.roofline.products == found.computed.total / 8 / 197e12
    bound = found.bound
    assert bound.tokens_per_second == 16 * 128 and bound.mfu == pytest.approx(found.task.total / (8 * 197e12))
    assert bound.run_seconds == 1000.0 and bound.chip_hours == pytest.approx(1000 / 3600 * 8)
    # Eight cores of four chips, each core with half of a chip's 900 GB/s.
    cores = plan.estimates(config(), topology.parse("v3-8"), step)
    assert cores.bound.chip_hours == pytest.approx(1000 * 819 / 450 / 3600 * 4)
    assert found.task.head / found.computed.head == pytest.approx(0.15 * 128 / 20)


def test_a_forecast_by_hand():
    """Operations of 3e9 cycles and kernels of 1.5e9 at 1.5 GHz, and 1.75 GB over links of 200 GB/s."""
    messages = (Collective("all-reduce", 8, 1, 1e9, 1.75e9),)
    kernels = KernelCycles({"attention.1": 1.2e9, "gradient.2": 0.3e9})
    step = compiled(1.0, kernels, estimated_cycles=3e9, hbm_bytes=819e9, collectives=messages)
    found = plan.estimates(config(), topology.parse("v5e-8"), step)
    assert (found.parts.operations, found.parts.kernels, found.parts.messages) == (2.0, 1.0, 1.75e9 / 200e9)
    assert found.forecast.seconds == found.parts.seconds == 3.0 + 1.75e9 / 200e9
    assert found.forecast.mfu == pytest.approx(found.bound.mfu / found.forecast.seconds)
    between = (*messages, Collective("all-reduce between slices", 2, 1, 1e9, 1e9))
    step = compiled(1.0, kernels, estimated_cycles=3e9, hbm_bytes=819e9, collectives=between)
    slices = plan.estimates(config(), topology.parse("v5e-8", 2), step)
    assert slices.parts.network == slices.roofline.network == 1e9 / (6.4e12 / 256 / 8)
    assert slices.forecast.seconds == found.forecast.seconds + slices.parts.network
    assert slices.forecast.chip_hours / slices.forecast.run_seconds == 16 / 3600
    optimistic = compiled(1.0, estimated_cycles=3e3, hbm_bytes=819e9)
    assert plan.estimates(config(), topology.parse("v5e-8"), optimistic).forecast.seconds == 1.0, "the bound"


@pytest.mark.parametrize(
    ("costs", "kernels", "reason"),
    [
        ({}, KernelCycles({}), "cycles"),
        ({"estimated_cycles": 1.0}, KernelCycles({}, ("attention.1",)), "attention.1"),
        ({"estimated_cycles": 1.0}, KernelCycles({}, (), ("attention.1",)), "attention.1"),
        ({"estimated_cycles": 1.0, "unknown_loops": ("while.3",)}, KernelCycles({}), "while.3"),
    ],
)
def test_why_there_is_no_forecast(costs, kernels, reason):
    found = plan.estimates(config(), topology.parse("v5e-8"), compiled(1.0, kernels, **costs))
    assert found.forecast is None and reason in found.parts


def request(name: str, **flags) -> Verb:
    source = "configs/ag/table9_tpu_gpu.py:scale=small"
    return verb_of(name, source, flags.pop("overrides", {}), **({"search_batch": False} | flags))


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"topology": "v5e:5x5"}, "'5x5'"),
        ({"topology": "v5e:2x2", "slices": 0}, "--slices"),
    ],
)
def test_refusals(flags, named, capsys):
    assert cli.run_safely(request("plan", **flags)) == 1
    assert named in capsys.readouterr().err


@needs_libtpu
@pytest.mark.parametrize(("name", "fsdp"), [("v5e:2x2", 2), ("v4-8", 1)])
def test_a_tiny_run_fits(name, fsdp):
    guided = {"guidance.mode": "loss", "guidance.fraction": 1.0}
    # Kernels, and other policies, compute the scores of attention once more for the backward pass.
    own = {"mesh.fsdp": fsdp, "model.attention": "reference", "model.remat": "none"}
    found = plan.make_plan(config(**guided, **own), topology.parse(name), search_batch=False)
    assert found.own.fits and found.chosen is found.own and found.mesh == {"data": 4 // fsdp, "fsdp": fsdp, "tensor": 1}
    step = found.own.outcome
    assert step.memory.total < 0.3 * GIB and not step.costs.unknown_loops
    kinds = {collective.kind for collective in step.costs.collectives}
    assert "all-reduce" in kinds and ("all-gather" in kinds) == (fsdp > 1)
    # The loop's body was counted twice: all products of the model are there, and nothing is computed again.
    limits = plan.estimates(found.own.config, found.topology, step)
    assert step.costs.flops * 4 == pytest.approx(limits.computed.total, rel=0.02)
    assert limits.forecast.seconds >= limits.bound.seconds and limits.parts.operations > 0
    said, kept = text.report(found), json.loads(json.dumps(text.as_json(found)))
    assert kept["fits"] and kept["own"]["costs"]["flops"] == step.costs.flops and kept["bounds"]["binds"] in said
    assert kept["forecast"]["seconds"] == limits.forecast.seconds


def pretend(monkeypatch, gibibytes_of):
    """Compilations that take a given memory and no time, for devices of the CPU."""
    tried = []

    def compile_step(config, slice_, devices):
        tried.append(config)
        size = gibibytes_of(config)
        return compiled(size) if size <= 15.75 else TooLarge(size * GIB, 15.75 * GIB)

    monkeypatch.setattr(plan, "compile_step", compile_step)
    monkeypatch.setattr(topology.Topology, "compile_only_devices", lambda self: jax.devices()[: self.devices])
    return tried


def rows_of(config):
    """On a device in a microbatch, of a slice of 8."""
    return config.training.batch_size / config.training.microbatches / 8


def test_a_batch_that_is_too_large_gets_microbatches(monkeypatch):
    tried = pretend(monkeypatch, lambda config: 0.2 + 0.6 * rows_of(config))
    found = plan.make_plan(config(**{"training.batch_size": 60 * 8}), topology.parse("v5e-8"))
    assert not found.own.fits and found.chosen is found.suggestion
    assert found.suggestion.settings == {"training.microbatches": 3}  # 20 rows: 30 would need 18 GiB
    assert sorted(config.training.microbatches for config in tried if config.training.batch_size == 480) == [1, 3]
    assert found.largest.config.training.batch_size == 25 * 8 and found.largest.outcome.memory.total == 15.2 * GIB
    said = text.report(found)
    numbers = ("needs 36.20 GiB", "has 15.75 GiB", "--config.training.microbatches=3", "200 rows, 25 rows on a device")
    assert all(number in said for number in numbers)


def test_one_row_that_is_too_large_gets_rematerialisation(monkeypatch):
    sizes = {"none": 40, "dots": 17, "layer": 5}
    tried = pretend(monkeypatch, lambda config: sizes[config.model.remat])
    found = plan.make_plan(config(**{"training.batch_size": 8, "model.remat": "none"}), topology.parse("v5e-8"))
    assert found.suggestion.settings == {"model.remat": "layer"} and found.largest is None
    assert [config.model.remat for config in tried if config.training.batch_size == 8][1:] == ["dots", "layer"]
    pretend(monkeypatch, lambda config: 99)
    found = plan.make_plan(config(), topology.parse("v5e-8"))
    assert found.chosen is None and text.report(found) and text.as_json(found)["bounds"] is None


def test_parameters_that_are_too_large_are_split(monkeypatch):
    pretend(monkeypatch, lambda config: 30 / config.mesh.fsdp)
    found = plan.make_plan(config(), topology.parse("v5e-8"), search_batch=False)
    assert found.suggestion.settings["mesh.fsdp"] == 8 and found.largest is None


def test_versions_and_cost_are_printed_and_kept(monkeypatch):
    """Another jax or libtpu compiles another program, so numbers without versions cannot be compared."""
    pretend(monkeypatch, lambda config: 5)
    found = plan.make_plan(config(), topology.parse("v5e-8"), search_batch=False)
    hours = plan.estimates(found.own.config, found.topology, found.own.outcome).bound.chip_hours
    kept, said = text.as_json(found, price=1000.0), text.report(found, price=1000.0)
    assert kept["versions"]["jax"] == jax.__version__ and set(kept["versions"]) == {"jax", "jaxlib", "libtpu"}
    assert (
        kept["price_per_chip_hour"] == 1000.0 and kept["cost"] == {"bound": pytest.approx(1000 * hours)} and hours > 0
    )
    assert kept["forecast"].keys() == {"none_because"} and kept["forecast"]["none_because"] in said
    assert f"jax {jax.__version__}, jaxlib " in said and f"${1000 * hours:,.2f}" in said
    assert text.as_json(found)["cost"] is None and "$" not in text.report(found)


def test_steps_before_a_branch_take_no_time(monkeypatch):
    """All batches have the same size, so 100 of 1,000 steps take a tenth of the time."""
    pretend(monkeypatch, lambda config: 5)
    of_branch = config(**{"training.branch_from": "runs/stable:900"})
    plans = [plan.make_plan(one, topology.parse("v5e-8"), search_batch=False) for one in (config(), of_branch)]
    whole, branch = (plan.estimates(one.own.config, one.topology, one.own.outcome).bound for one in plans)
    assert branch.run_seconds == pytest.approx(whole.run_seconds / 10)


def test_flags_for_a_smaller_batch_name_all_that_was_changed(monkeypatch):
    """Batch sizes of earlier steps are left out with the larger batch that they led to.

    67 rows on a device are a prime number, and more than the most microbatches that are tried.
    """
    tried = pretend(monkeypatch, lambda config: 0.2 + 0.6 * rows_of(config))
    earlier = {"training.earlier_batch_sizes": (8 * 29,), "training.earlier_batch_sizes_until": (5,)}
    fixed = {"training.batch_size": 8 * 67, "model.remat": "layer", "mesh.data": 1, "mesh.fsdp": 8}
    found = plan.make_plan(config(**fixed, **earlier), topology.parse("v5e-8"))
    assert found.suggestion is None and found.chosen is found.largest
    flags = "--config.training.batch_size=200 --config.training.earlier_batch_sizes="
    assert f"{flags} --config.training.earlier_batch_sizes_until= " in text.report(found)
    found = plan.make_plan(
        config(**{"training.batch_size": 60 * 8}, **earlier | {"training.earlier_batch_sizes": (240,)}), found.topology
    )
    # Three microbatches of 160 rows would fit, but 240 rows are no whole number of them.
    assert found.suggestion.settings == {"training.microbatches": 4}
    assert found.suggestion.config.training.earlier_batch_sizes == (240,)
    assert found.largest.config.training.batch_size == 25 * 8
    tried = [config for config in tried if config.training.batch_size // 60 != 8]
    assert {len(config.training.earlier_batch_sizes) for config in tried} == {0}
