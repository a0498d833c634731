"""The training of a run as a cell: what it stores, and what it refuses."""

import jax
import pytest
from etils import epath

from ag_jax.grid import run as grid
from ag_jax.grid.cells import Stage
from ag_jax.pretraining import run
from ag_jax.pretraining.training_cell import TrainingCell
from ag_jax.training.journal import NonFiniteError
from tests.pretraining.tiny_runs import SHORT, settings

pytestmark = pytest.mark.usefixtures("one_device")


def computed(workdir, *cells):
    return grid.run(lambda table: Stage(cells), epath.Path(workdir))


def test_it_pauses_and_ends_as_a_run_that_never_paused(text, short, tmp_path):
    cells = [TrainingCell("a", settings(text), until=until) for until in (3, None)]
    table = computed(tmp_path, *cells)
    assert table["a@3"].facts["steps"] == 3 and table["a"].facts == short[1]
    assert run.train(settings(text), tmp_path / "a") == short[1], "the verb reads the same result"
    titled = [TrainingCell("a", settings(text, title="another"), until=until) for until in (3, None)]
    assert computed(tmp_path, *titled) == table, "settings that change no number are no inputs"


def test_losses_at_a_step_that_is_past_are_not_known(text, tmp_path):
    computed(tmp_path, TrainingCell("a", settings(text)))
    with pytest.raises(ValueError, match=f"a is at step {SHORT}, and its losses at step 3"):
        computed(tmp_path, TrainingCell("a", settings(text), until=3))


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NonFiniteError("loss is nan"), "diverged"),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: 3 bytes"), "out_of_memory"),
        (jax.errors.JaxRuntimeError("INTERNAL: a bug"), None),
    ],
)
def test_how_a_run_fails(text, tmp_path, monkeypatch, error, status):
    def fails(*_):
        raise error

    monkeypatch.setattr(run, "train_held", fails)
    cell = TrainingCell("a", settings(text))
    if status is None:
        with pytest.raises(jax.errors.JaxRuntimeError):
            computed(tmp_path, cell)
        return
    result = computed(tmp_path, cell)["a"]
    assert result.status == status and result.reason.endswith(str(error))
