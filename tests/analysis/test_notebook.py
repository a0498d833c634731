"""The notebook runs from its first cell to its last, with a run that exists and with one that it trains itself."""

import pathlib
import re

import nbclient
import nbformat
import pytest
from etils import epath

from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import run

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
NOTEBOOK = REPOSITORY / "notebooks" / "attention_maps.ipynb"
TEXT = "The state of the union is strong. We will build roads, and we will build them well. Thank you. "


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    directory = tmp_path_factory.mktemp("text")
    for number in range(9):
        (directory / f"{number}.txt").write_text(TEXT * 5 + f"It is number {number}.")
    return directory


def tiny_run(source, workdir, **guidance):
    config = pretraining_config.default_config()
    config.data.update(source=str(source), sequence_length=32)
    config.data.tokenizer.vocabulary_size = 300
    config.model.update(layers=3, heads=5, width=20, max_length=32)
    config.training.update(steps=3, batch_size=8, log_every=1, evaluate_every=None, tensorboard=False)
    config.guidance.update(**guidance)
    run.train(pretraining_config.parse(config), epath.Path(workdir))


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """As a reader opens it: the package on the path, a process with one device, no run named, no run nearby."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.delenv("AG_JAX_RUN", raising=False)
    return tmp_path


def execute(notebook, directory):
    """Run all cells in `directory`; returns the printed text and the number of pictures."""
    client = nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(directory)}})
    client.execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    printed = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    return printed, sum("image/png" in output.get("data", {}) for output in outputs)


def test_it_is_committed_without_outputs():
    notebook = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code and not any(cell.outputs or cell.execution_count for cell in code)
    imported = set(re.findall(r"^(?:from|import) (\w+)", "\n".join(cell.source for cell in code), re.MULTILINE))
    assert imported <= {"os", "pathlib", "tempfile", "etils", "IPython", "ag_jax"}


@pytest.mark.parametrize("mode", ["loss", pytest.param("none", marks=pytest.mark.exhaustive)])
def test_it_shows_a_run(source, alone, monkeypatch, mode):
    """A run that is named, and that of the quickstart, which the notebook finds from its
    own folder by a relative path.
    """
    workdir, folder = alone / "runs" / "quickstart" / "ag-seed0", alone / "notebooks"
    folder.mkdir()
    tiny_run(source, workdir, mode=mode, heads="next:1,period:2")
    if mode == "none":
        monkeypatch.setenv("AG_JAX_RUN", "../runs/quickstart/ag-seed0")
    printed, pictures = execute(nbformat.read(NOTEBOOK, 4), folder)
    assert f"{workdir}, step 3: 3 layers of 5 heads" in printed
    assert ("1 [Next], 2 [Period]" if mode == "loss" else "guided in every layer: none") in printed
    assert "(3, 5, 32, 32)" in printed and "by chance" in printed
    assert pictures == 5


def test_without_a_run_it_trains_one(source, alone):
    notebook = nbformat.read(NOTEBOOK, 4)
    (cell,) = [cell for cell in notebook.cells if "train_small()" in cell.source]
    assert "steps=300" in cell.source and "vocabulary_size = 2048" in cell.source
    smaller = cell.source.replace("steps=300", "steps=3").replace("vocabulary_size = 2048", "vocabulary_size = 300")
    cell.source = smaller.replace("sequence_length=64)", f"sequence_length=64, source={str(source)!r})")
    printed, pictures = execute(notebook, alone)
    assert "small, step 3: 4 layers of 6 heads" in printed and "1 [Next], 1 [Prev], 1 [First]" in printed
    assert pictures == 5
