"""How a run's objective is put together."""

import pathlib

import pytest

from ag_jax import config_reader
from ag_jax.pretraining import build, config, workloads
from ag_jax.training.hyperparameters import Hyperparameters

QUICKSTART = str(pathlib.Path(__file__).parents[2] / "configs" / "quickstart.py")


@pytest.mark.parametrize(
    ("devices", "count", "rows"),
    [(1, "bernoulli", 4), (8, "bernoulli", 1), (1, "fixed", 1)],  # 22 slots a row, of at most 96 a group
)
def test_slots_are_left_out_on_one_device_where_tokens_are_masked_independently(devices, count, rows):
    settings = config.parse(config_reader.load(f"{QUICKSTART}:arm=mlm", {"data.masking.count": count}))
    vocabulary = workloads.VocabularyInfo(4096)
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
