"""guidance.alpha_rule=auto: the power of ten that makes both losses comparable, chosen once for a run."""

import json
from types import SimpleNamespace

import jax.numpy as jnp
import pytest
from etils import epath

from ag_jax.finetuning.config import FinetuningConfig
from ag_jax.objectives.replaced_tokens import ReplacedTokens
from ag_jax.pretraining import alpha, run, run_directory
from ag_jax.settings import schema
from tests.pretraining import tiny_runs
from tests.pretraining.tiny_runs import rows

AUTO = {"guidance.alpha_rule": "auto"}


def settings(text="never read", **changed):
    return tiny_runs.settings(text, **{**tiny_runs.GUIDED, "training.log_every": 1} | changed)


@pytest.mark.parametrize(
    ("loss", "guidance_loss", "expected"),
    # The first two: 12 and 8 layers at the beginning, with 512 tokens and three patterns.
    [(10.9, 0.070, 100), (10.9, 0.047, 100), (10.9, 0.3, 100), (10.9, 0.4, 10), (2.0, 5.0, 1), (1.0, 50.0, 0.01)],
)
def test_the_nearest_power_of_ten(loss, guidance_loss, expected):
    assert alpha.comparable(loss, guidance_loss) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("loss", "guidance_loss"), [(1.0, 0.0), (float("nan"), 1.0), (1.0, float("inf"))])
def test_losses_that_cannot_be_compared(loss, guidance_loss):
    with pytest.raises(ValueError, match="alpha_rule=auto"):
        alpha.comparable(loss, guidance_loss)


def test_a_loss_counts_with_its_coefficient(tmp_path):
    """That of replaced tokens beside a generator is 50: .7 nats become 35."""
    losses = {"rtd_loss": 0.7, "ag_loss": 0.07}
    found = alpha.begin(settings(**AUTO), epath.Path(tmp_path), "rtd_loss", 50.0, lambda: losses)
    assert float(found.alpha) == 1000.0
    stored = json.loads((tmp_path / alpha.ALPHA).read_text())
    assert stored == {"alpha": 1000.0, "rtd_loss": pytest.approx(0.7), "coefficient": 50.0, "ag_loss": 0.07}
    objective = ReplacedTokens(SimpleNamespace(generator_config=None), weight=50.0)
    assert float(objective.coefficients(jnp.int32(0))[objective.primary_metric.term]) == 50.0


def test_a_run_has_the_alpha_of_its_first_losses(text, tmp_path, one_device):
    """It is trained as a run with that alpha, and a run that pauses goes on with it, whatever its losses are then."""
    made, given = (epath.Path(tmp_path / name) for name in ("auto", "given"))
    config = settings(text, **AUTO, **{"guidance.alpha": 3.0})
    run.train(config, made, until=2)
    stored = json.loads((made / alpha.ALPHA).read_text())
    first = rows(made)[0]
    assert [stored["mlm_loss"], stored["ag_loss"]] == pytest.approx([first["mlm_loss"], first["ag_loss"]], rel=1e-5)
    assert 10**-0.5 < stored["alpha"] * stored["ag_loss"] / stored["mlm_loss"] < 10**0.5
    (made / alpha.ALPHA).write_text(json.dumps(stored | {"mlm_loss": 1e9}))
    run.train(config, made)
    run.train(settings(text, **{"guidance.alpha": stored["alpha"]}), given)
    assert rows(made) == rows(given)
    assert run.evaluate(made)["ag_loss"] == run.evaluate(given)["ag_loss"]
    (made / alpha.ALPHA).unlink()
    with pytest.raises(ValueError, match="alpha.json"):
        run.evaluate(made)


def test_an_attempt_with_nothing_to_keep_leaves_no_alpha(tmp_path):
    config = settings(**AUTO)
    (tmp_path / "config.json").write_text(json.dumps(schema.to_dict(config)))
    (tmp_path / alpha.ALPHA).write_text("{}")
    run_directory.claim(config, epath.Path(tmp_path))
    assert not (tmp_path / alpha.ALPHA).exists()


def test_the_rule_needs_a_guidance_loss_in_pretraining():
    with pytest.raises(ValueError, match="mode=bias"):
        settings(**AUTO, **{"guidance.mode": "bias"})
    suite = {"checkpoint": "never read", "tasks": {"rte": {}}, "guidance": {"mode": "loss", "alpha_rule": "auto"}}
    with pytest.raises(ValueError, match="alpha_rule=auto"):
        schema.parse(FinetuningConfig, suite)
    chosen = settings(**AUTO, **{"guidance.alpha": 3.0}).in_effect
    assert chosen == settings(**AUTO).in_effect, "alpha has no effect"
