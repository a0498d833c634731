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


def test_there_are_two():
    assert list(NOTEBOOKS) == [MAPS, FINETUNING]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_is_committed_without_outputs(name):
    """And imports only what the installation has, from modules that have it."""
    notebook = nbformat.read(NOTEBOOKS[name], 4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code and not any(cell.outputs or cell.execution_count for cell in code)
    imports = re.findall(r"^(?:from|import) .*$", "\n".join(cell.source for cell in code), re.MULTILINE)
    assert {line.split()[1].partition(".")[0] for line in imports} <= ALLOWED
    exec("\n".join(imports), {})


@pytest.mark.exhaustive
def test_it_shows_a_run(trained, alone):
    """Without a named run, the notebook shows the quickstart's, at a path relative to the notebook's folder."""
    (alone / "runs").symlink_to(trained / "runs")
    printed, pages, pictures = execute(MAPS, alone / "notebooks")
    assert "quickstart/ag-seed0, step 3\n3 layers of 5 heads\n" in printed
    assert "guided in every layer: 1 [Next], 2 [Period]\n" in printed
    assert "by chance" in printed and "Attack asa" in printed and re.search(r"\(3, 5, (\d+), \1\)", printed)
    assert "PUBLISHED is empty" in printed
    assert (pages, pictures) == (2, 3)


@pytest.mark.exhaustive
def test_it_shows_a_named_run_and_a_published_model(trained, alone, monkeypatch):
    """From the repository's root."""
    path = trained / "runs" / "quickstart" / "ag-seed0"
    monkeypatch.setenv("AG_JAX_RUN", str(path))
    printed, pages, pictures = execute(MAPS, alone, PUBLISHED=str(path), SENTENCE="We will build roads.")
    assert printed.count("quickstart/ag-seed0, step 3\n") == 2 and printed.count("Encoder: attention mass") == 2
    assert (pages, pictures) == (3, 3)


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
    settings = {}
    if place == "notebooks":
        (alone / "runs").symlink_to(trained / "runs")
        texts = (("we build roads", "good"), ("we will not", "bad"))
        rows = [f"{text} {number},{label}" for number in range(30) for text, label in texts]
        (alone / "mine.csv").write_text("\n".join(["text,label", *rows]))
        settings = {"TABLE": "../mine.csv"}
    printed, pages, pictures = execute(FINETUNING, alone / place, **settings)
    assert ("/quickstart/ag-seed0\n" if place == "notebooks" else "runs/small_encoder\n") in printed
    assert "plain: accuracy " in printed and "asa: accuracy " in printed
    classes = ("good", "bad") if settings else ("roads", "health", "taxes")
    assert re.search(rf"asa +({'|'.join(classes)}) +[0-9]+%  We will build a bridge", printed)
    assert "Attack asa" in printed and "of the cells are masked" in printed
    assert (pages, pictures) == (1, 0)
