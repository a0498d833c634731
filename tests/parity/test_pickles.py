"""The line that the refusal of a pickle offers does what it says, also for a head by Microsoft's names."""

import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra: pip install 'ag_jax[parity]'")

from etils import epath
from safetensors.numpy import load_file

from ag_jax.interop import importing, names, tensors
from ag_jax.pretraining.open_run import open_run
from tests.interop.test_goldens import GOLDENS


def test_the_conversion_of_a_pickle(tmp_path):
    """DeBERTa as its authors released it: their head, their positions for the mask decoder, and a detector's head."""
    golden = GOLDENS / "deberta_v3"
    for file in ("config.json", "vocab.txt"):
        (tmp_path / file).write_bytes((golden / file).read_bytes())
    saved = load_file(golden / "model.safetensors")
    renamed = {
        name.replace("cls.predictions.transform.", "lm_predictions.lm_head."): value for name, value in saved.items()
    }
    renamed["lm_predictions.lm_head.bias"] = renamed.pop("cls.predictions.bias")
    renamed["deberta.embeddings.position_embeddings.weight"] = np.ones((20, 6), np.float16)
    renamed["mask_predictions.dense.weight"] = np.ones((6, 6), np.float16)
    torch.save({name: torch.tensor(value) for name, value in renamed.items()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="is a pickle") as caught:
        importing.convert(str(tmp_path), epath.Path(tmp_path / "run"))
    line = tensors.CONVERSION.format(directory=tmp_path)
    assert line in str(caught.value)
    subprocess.run(line.replace("python", sys.executable, 1), shell=True, check=True)
    with pytest.raises(ValueError, match=r"mask_predictions.dense.weight \(6, 6\)"):
        importing.convert(str(tmp_path), epath.Path(tmp_path / "run"))
    importing.convert(str(tmp_path), epath.Path(tmp_path / "run"), expected=["mask_predictions"])
    opened = open_run(tmp_path / "run")
    assert (opened.model.config.absolute_positions, opened.model.config.mask_decoder_passes) == ("decoder", 2)
    ours = names.flat(opened.params)
    assert np.array_equal(ours["word_head/bias"], saved["cls.predictions.bias"].astype(np.float32))
    assert np.array_equal(ours["encoder/embeddings/position/embedding"], np.ones((20, 6)))
