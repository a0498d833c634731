"""The model FLOPs utilisation of a run, against the formula of `models.flops` by hand."""

import jax
import numpy as np
import pytest

from ag_jax.pretraining import build, run
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining.workloads import VocabularyInfo
from ag_jax.training import chips, sharding

WIDTH, LAYERS, LENGTH, ROWS, WORDS = 12, 3, 20, 5, 300


def utilisation(devices, **settings):
    values = pretraining_config.default_config()
    values.model.update(width=WIDTH, layers=LAYERS, heads=2, max_length=LENGTH)
    values.data.sequence_length = LENGTH
    values.training.batch_size = ROWS * devices
    values.training.update(settings)
    values.mesh.data = devices
    config, words = pretraining_config.parse(values), VocabularyInfo(WORDS)
    mesh = sharding.make_mesh(config.mesh, jax.devices()[:devices])
    return run._utilisation(config, words, build.shared_program(config, words, mesh))


@pytest.mark.parametrize("devices", [1, 2])
def test_it_is_the_share_of_the_peak_of_all_devices(devices, monkeypatch):
    monkeypatch.setattr(chips, "of_kind", lambda kind: chips.tpu("v3"))  # two devices a chip
    tokens = ROWS * LENGTH  # of a device
    body = LAYERS * (4 * WIDTH**2 + 2 * WIDTH * 4 * WIDTH)
    attention = LAYERS * 2 * WIDTH * LENGTH
    head = 0.15 * (WIDTH**2 + WIDTH * WORDS)
    flops = 6 * tokens * (body + attention + head)
    np.testing.assert_allclose(utilisation(devices)(7, 8, 0.25), flops / (0.25 * 123e12 / 2), rtol=1e-12)


def test_smaller_batches_count_by_their_rows(monkeypatch):
    monkeypatch.setattr(chips, "of_kind", lambda kind: chips.tpu("v3"))
    found = utilisation(1, earlier_batch_sizes=(1, 3), earlier_batch_sizes_until=(4, 6))
    full = utilisation(1)(0, 1, 0.25) / ROWS  # of a row
    for start, stop, rows in ((0, 1, 1), (3, 5, 4), (2, 8, 1 + 1 + 3 + 3 + 2 * ROWS), (6, 7, ROWS)):
        np.testing.assert_allclose(found(start, stop, 0.25), full * rows, rtol=1e-12)


def test_a_device_of_unknown_peak_has_none():
    assert utilisation(1) is None
