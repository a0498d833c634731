"""The notebooks run from their first cell to their last, with a run that exists and with one that they train."""

import pathlib
import re

import nbclient
import nbformat
import pytest
from etils import epath

from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import run

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
NOTEBOOKS = {path.stem: path for path in sorted((REPOSITORY / "notebooks").glob("*.ipynb"))}
MAPS, FINETUNING = "attention_maps", "finetuning_and_attacks"
ALLOWED = {"csv", "json", "os", "pathlib", "random", "tempfile", "etils", "IPython", "ag_jax"}
TEXT = "The state of the union is strong. We will build roads, and we will build them well. Thank you. "


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The directory `runs/quickstart/ag-seed0` of a run, guided and against an adversary."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "text").mkdir()
    for number in range(9):
        (folder / "text" / f"{number}.txt").write_text(TEXT * 5 + f"It is number {number}.")
    config = pretraining_config.default_config()
    config.data.update(source=str(folder / "text"), sequence_length=64)
    config.data.tokenizer.vocabulary_size = 300
    config.model.update(layers=3, heads=5, width=20, max_length=64)
    config.training.update(steps=3, batch_size=8, log_every=1, evaluate_every=None, tensorboard=False)
    config.guidance.update(mode="loss", heads="next:1,period:2")
    config.adversarial.update(method="asa")
    run.train(pretraining_config.parse(config), epath.Path(folder / "runs" / "quickstart" / "ag-seed0"))
    return folder


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """As a reader opens it: the package on the path, a process with one device, no run named, no run nearby."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("AG_JAX_NOTEBOOK", "small")
    monkeypatch.delenv("AG_JAX_RUN", raising=False)
    (tmp_path / "notebooks").mkdir()
    return tmp_path


def execute(name, directory, **settings):
    """Run all cells in `directory`; return the printed text, the number of pages, and the number of pictures.

    settings: values of the variables of the first cell.
    """
    notebook = nbformat.read(NOTEBOOKS[name], 4)
    first = next(cell for cell in notebook.cells if cell.cell_type == "code")
    for variable, value in settings.items():
        first.source, count = re.subn(rf"(?m)^{variable} = .*$", f"{variable} = {value!r}", first.source)
        assert count == 1
    client = nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(directory)}})
    client.execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    printed = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    shown = [output.get("data", {}) for output in outputs]
    pages = [data["text/html"] for data in shown if "text/html" in data]
    assert all(len(data["text/plain"]) < 500 for data in shown if "text/html" in data)
    assert all("<iframe srcdoc=" in page and len(page) < 4_000_000 for page in pages)
    return printed, len(pages), sum("image/png" in data for data in shown) - len(pages)


def test_they_are_committed_without_outputs():
    """And import only what the installation has, from modules that have it."""
    assert list(NOTEBOOKS) == [MAPS, FINETUNING]
    for path in NOTEBOOKS.values():
        notebook = nbformat.read(path, 4)
        nbformat.validate(notebook)
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert code and not any(cell.outputs or cell.execution_count for cell in code)
        imports = re.findall(r"^(?:from|import) .*$", "\n".join(cell.source for cell in code), re.MULTILINE)
        assert {line.split()[1].partition(".")[0] for line in imports} <= ALLOWED
        exec("\n".join(imports), {})


@pytest.mark.exhaustive
@pytest.mark.parametrize("is_named", [False, True])
def test_it_shows_a_run(trained, alone, monkeypatch, is_named):
    """The quickstart's, at a path relative to the notebook's folder; or one that is named, and a published model."""
    path = trained / "runs" / "quickstart" / "ag-seed0"
    if is_named:
        monkeypatch.setenv("AG_JAX_RUN", str(path))
        found = execute(MAPS, alone, PUBLISHED=str(path), SENTENCE="We will build roads.")
        assert found[0].count("quickstart/ag-seed0, step 3\n") == 2 and found[1:] == (3, 3)
        return
    (alone / "runs").symlink_to(trained / "runs")
    printed, *shown = execute(MAPS, alone / "notebooks")
    assert "quickstart/ag-seed0, step 3\n3 layers of 5 heads\n" in printed and "1 [Next], 2 [Period]\n" in printed
    assert "Attack asa" in printed and re.search(r"\(3, 5, (\d+), \1\)", printed) and shown == [2, 3]


@pytest.mark.exhaustive
def test_without_a_run_it_trains_one(alone):
    printed, pages, pictures = execute(MAPS, alone)
    assert "runs/small, step 150\n2 layers of 6 heads\n" in printed and "1 [Next], 1 [Prev], 1 [First]" in printed
    assert (pages, pictures) == (2, 3)


@pytest.mark.exhaustive
@pytest.mark.parametrize("place", ["notebooks", "."])
def test_it_finetunes_and_attacks(trained, alone, place):
    """With the run that it finds from its own folder and without one from the repository's root; on a table that it
    makes and on the reader's.
    """
    settings, of_run, classes = {}, "runs/small_encoder\n", ("roads", "health", "taxes")
    if place == "notebooks":
        (alone / "runs").symlink_to(trained / "runs")
        texts = (("we build roads", "good"), ("we will not", "bad"))
        rows = [f"{text} {number},{label}" for number in range(30) for text, label in texts]
        (alone / "mine.csv").write_text("\n".join(["text,label", *rows]))
        settings, of_run, classes = {"TABLE": "../mine.csv"}, "/quickstart/ag-seed0\n", ("good", "bad")
    printed, pages, pictures = execute(FINETUNING, alone / place, **settings)
    assert of_run in printed and "plain: accuracy " in printed and "asa: accuracy " in printed
    assert re.search(rf"asa +({'|'.join(classes)}) +[0-9]+%  We will build a bridge", printed)
    assert "Attack asa" in printed and (pages, pictures) == (1, 0)
