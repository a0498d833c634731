"""How long the texts are that a probed model is given."""

import pytest
from etils import epath

from ag_jax.finetuning.job import make_head
from ag_jax.interop import finetuned, opening
from ag_jax.interop.finetuned import FineTuned
from ag_jax.probing.models import open_model
from tests import tiny
from tests.finetuning import tasks


@pytest.mark.parametrize(("trained", "expected"), [(14, 14), (None, 24)])
def test_texts_are_no_longer_than_those_of_training(trained, expected, tmp_path):
    """A trial says how long they were; trials of earlier versions and imported models do not: all positions count."""
    head, config = make_head(tasks.task("classification"), "roberta", 10), tasks.pretrained().config
    params = tiny.params(head.model(config), tiny.task_batch("classification"))
    tuned = FineTuned(head, config, tasks.TOKENIZER, params, trained_length=trained)
    finetuned.save(tuned, epath.Path(tmp_path / "trial" / "weights"))
    assert finetuned.load(tmp_path / "trial").trained_length == trained
    assert open_model(str(tmp_path / "trial")).longest == expected
    assert opening.open_for_inspection(epath.Path(tmp_path / "trial")).length == expected
    assert opening.open_encoder(str(tmp_path / "trial"), fresh=True).trained_length == 0
