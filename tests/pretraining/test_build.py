"""How a run's objective is put together, and its model FLOPs utilisation, against a formula by hand."""

import functools

import jax
import numpy as np
import pytest

from ag_jax.pretraining import build, config, run, workloads
from ag_jax.pretraining.workloads import VocabularyInfo
from ag_jax.settings import config_files
from ag_jax.training import chips, sharding
from ag_jax.training.hyperparameters import Hyperparameters

WIDTH, LAYERS, LENGTH, ROWS, WORDS = 12, 3, 20, 5, 300


@pytest.mark.parametrize(
    ("devices", "count", "rows"),
    [(1, "bernoulli", 4), (8, "bernoulli", 1), (1, "fixed", 1)],  # 22 slots a row, of at most 96 a group
)
def test_slots_are_left_out_on_one_device_where_tokens_are_masked_independently(devices, count, rows):
    settings = config_files.load("quickstart:arm=plain", {"data.masking.count": count}).settings
    vocabulary = VocabularyInfo(4096)
    model = workloads.reference_model(settings, vocabulary)
    assert build.make_objective(settings, vocabulary, model, devices, Hyperparameters()).group_rows == rows


def test_static_settings_of_any_allowed_config_are_allowed():
    """A translation averages at most as many checkpoints as are kept."""
    translates = {"decoder.layers": 1, "data.format": "parallel", "data.source": "a", "data.target": "b"}
    flat = {"translation.average": 3, "training.keep_last": 3, "training.log_every": 7}
    source = config.default_config()
    source.update_from_flattened_dict(translates | flat)
    found = build.static_settings(config.parse(source))
    assert found.translation.average == 3 and found.training.log_every != 7


def utilisation(devices, **settings):
    values = config.default_config()
    values.model.update(width=WIDTH, layers=LAYERS, heads=2, max_length=LENGTH)
    values.data.sequence_length = LENGTH
    values.training.batch_size = ROWS * devices
    values.training.update(settings)
    values.mesh.data = devices
    parsed, words = config.parse(values), VocabularyInfo(WORDS)
    mesh = sharding.make_mesh(parsed.mesh, jax.devices()[:devices])
    return functools.partial(run.utilisation, parsed, words, mesh)


@pytest.mark.parametrize("devices", [1, 2])
def test_utilisation_is_the_share_of_the_peak_of_all_devices(devices, monkeypatch):
    monkeypatch.setattr(chips, "of_kind", lambda kind: chips.tpu("v3"))  # two devices a chip
    tokens = ROWS * LENGTH  # of a device
    body = LAYERS * (4 * WIDTH**2 + 2 * WIDTH * 4 * WIDTH)
    attention = LAYERS * 2 * WIDTH * LENGTH
    head = 0.15 * (WIDTH**2 + WIDTH * WORDS)
    flops = 6 * tokens * (body + attention + head)
    np.testing.assert_allclose(utilisation(devices)(7, 8, 0.25), flops / (0.25 * 123e12 / 2), rtol=1e-12)


def test_smaller_batches_count_by_their_rows(monkeypatch):
    assert utilisation(1)(0, 1, 0.25) is None, "the peak of a CPU is unknown"
    monkeypatch.setattr(chips, "of_kind", lambda kind: chips.tpu("v3"))
    found = utilisation(1, earlier_batch_sizes=(1, 3), earlier_batch_sizes_until=(4, 6))
    full = utilisation(1)(0, 1, 0.25) / ROWS  # of a row
    for start, stop, rows in ((0, 1, 1), (3, 5, 4), (2, 8, 1 + 1 + 3 + 3 + 2 * ROWS), (6, 7, ROWS)):
        np.testing.assert_allclose(found(start, stop, 0.25), full * rows, rtol=1e-12)
