"""The section of a fine-tuning report that says how to load the best models."""

import json
import shlex
from collections.abc import Mapping, Sequence

from etils import epath

from ag_jax.analysis.report import Section
from ag_jax.analysis.tables import shortened
from ag_jax.data.tasks.task import Example, Texts
from ag_jax.distributed import storage
from ag_jax.finetuning.error_analysis import texts_of
from ag_jax.finetuning.results import Top
from ag_jax.interop import finetuned

CALLS = {
    "classification": "predict([{}])",
    "multilabel": "predict([{}])",
    "regression": "predict([{}])",
    "choice": "choose({}, [{}])",
    "tagging": "tag({})",
    "span": "answer({}, {})",
    "span_or_none": "answer({}, {})",
}
LONGEST = 60  # characters of a text


def section(tops: Mapping[str, Top], workdir: epath.Path) -> Section:
    """Return the section with Python and a command for the best trial of each task whose weights were saved.

    tops: the best trial of each task.
    workdir: the directory of the report.
    """
    saved = {name: top for name, top in tops.items() if finetuned.locate(top.directory) is not None}
    if not saved:
        return Section(
            "Use this model",
            [
                "No weights were saved: to save those of the best trials, train again, in another `--workdir`, with "
                "`--config.keep=best`."
            ],
        )
    lines, commands = ["import ag_jax"], []
    for name, top in saved.items():
        # `best.find` takes the best trial of a directory: of all arms, if there is one task.
        place = storage.shown(workdir if len(tops) == 1 else top.directory.parent)
        lines += ["", f"model = ag_jax.load({json.dumps(place, ensure_ascii=False)})"]
        if call := _call(top.predicted.task.kind, top.predicted.examples):
            lines.append(f"model.{call}")
        to = f"models/{workdir.name}" + ("" if len(tops) == 1 else f"_{name}")
        commands.append(shlex.join(["ag-jax", "export", f"--workdir={storage.shown(top.directory)}", f"--to={to}"]))
    blocks = ["\n".join(["```python", *lines, "```"]), "In the format of Hugging Face:"]
    return Section("Use this model", [*blocks, "\n".join(["```bash", *commands, "```"])])


def _call(kind: str, examples: Sequence[Example]) -> str:
    """Return the call of a model's function for a short example; "" for kinds of tasks without such a function."""
    if kind not in CALLS:
        return ""

    def longest(example: Example) -> int:
        return max(map(len, texts_of(example)))

    example = next((one for one in examples if 15 < longest(one) <= LONGEST), min(examples, key=longest))
    texts = [json.dumps(shortened(text, LONGEST), ensure_ascii=False) for text in texts_of(example)]
    if isinstance(example, Texts):
        texts = texts if len(texts) == 1 else [f"({', '.join(texts)})"]
    elif kind == "choice":
        texts = [texts[0], ", ".join(texts[1:])]
    return CALLS[kind].format(*texts)
