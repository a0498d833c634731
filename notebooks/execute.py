"""Execute the notebooks on the stored example, and store their outputs in them.

    python notebooks/execute.py                                # all of them
    python notebooks/execute.py notebooks/attention_maps.ipynb

Outputs are stored without the paths of the machine, times and warnings, and pictures with 256 colours. Of a page of
attention maps, a picture is stored before it for readers without scripts, such as those on GitHub, and the page only up
to `LARGEST_PAGE`.
"""

import base64
import io
import os
import pathlib
import re
import sys
import tempfile

import nbclient
import nbformat
from nbformat import NotebookNode
from PIL import Image

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOTEBOOKS = tuple(sorted((ROOT / "notebooks").glob("*.ipynb")))
LARGEST_PAGE = 500_000  # bytes
STILL = "still"  # in the metadata of the picture that is stored before a page


def execute(notebook: NotebookNode, directory: os.PathLike) -> None:
    """Execute a notebook's cells in `directory`, with the package of this clone, on one CPU device."""
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu", "IPYTHONDIR": f"{directory}/.ipython"}
    place = {"metadata": {"path": str(directory)}}
    client = nbclient.NotebookClient(
        notebook, timeout=1800, kernel_name="python3", coalesce_streams=True, resources=place
    )
    client.execute(env=environment)


def clean(notebook: NotebookNode) -> None:
    """Leave nothing in a notebook's outputs that depends on the machine or the time, nor pages that are too large."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times
        if cell.cell_type == "code":
            outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            cell.outputs = [cleaned for output in outputs for cleaned in _cleaned(output)]
    notebook.metadata.language_info = {"name": "python"}


def _cleaned(output: NotebookNode) -> list[NotebookNode]:
    """Return an output without paths of the machine; of a page of attention maps, a picture and the page."""
    if output.output_type == "stream":
        output.text = _without_paths(output.text)
        return [output]
    output.data = {
        kind: _smaller(data) if kind == "image/png" else _without_paths(data) for kind, data in output.data.items()
    }
    if not output.data.get("text/html", "").startswith("<iframe"):
        return [output]
    picture = {"image/png": output.data.pop("image/png"), "text/plain": output.data["text/plain"]}
    still = nbformat.v4.new_output("display_data", picture, metadata={STILL: True})
    return [still, output] if len(output.data["text/html"]) <= LARGEST_PAGE else [still]


def _smaller(picture: str) -> str:
    """Return a PNG, in base64, with a palette: about a third of the bytes."""
    written = io.BytesIO()
    Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB").quantize(256).save(written, "PNG", optimize=True)
    return base64.b64encode(written.getvalue()).decode()


def _without_paths(text: str) -> str:
    text = text.replace(f"{ROOT}/", "")
    return re.sub(rf"{re.escape(tempfile.gettempdir())}/\w+", "FOLDER", text)


def main() -> None:
    """Execute the notebooks that the command line names, or all."""
    for path in map(pathlib.Path, sys.argv[1:] or NOTEBOOKS):
        notebook = nbformat.read(path, 4)
        with tempfile.TemporaryDirectory() as directory:
            execute(notebook, directory)
        clean(notebook)
        nbformat.validate(notebook)
        nbformat.write(notebook, path)
        print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
