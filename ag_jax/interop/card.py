"""Model cards: written for exported models (data, training, metrics, origin), and read from imported ones."""

import dataclasses
import json
import pathlib
import re
from collections.abc import Sequence
from typing import Any

from ag_jax import config_reader
from ag_jax.interop.finetuned import FineTuned
from ag_jax.models.config import EncoderConfig
from ag_jax.pretraining import workloads
from ag_jax.pretraining.origin import Origin
from ag_jax.pretraining.run import OpenRun
from ag_jax.training.metrics import read_metrics

_POSITION = ("step", "split", "tokens_seen")
_BIBTEX = re.compile(r"^```[^\n`]*\n\s*(@\w+\{.*?)^```", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Card:
    """The statements in the model card of an imported model; a field is empty if the card does not state it.

    license: identifier of the licence.
    base_model: name of the model that the imported model was trained from.
    citation: the BibTeX entries of the card.
    """

    license: str = ""
    base_model: str = ""
    citation: str = ""


def read_card(file: pathlib.Path) -> Card:
    """Read the licence, base model and citations from a model card, the README.md `file`; an empty `Card` if there is
    no such file.
    """
    text = file.read_text(encoding="utf-8-sig", errors="replace") if file.exists() else ""
    front = _front_matter(text)
    citation = "\n\n".join(entry.strip() for entry in _BIBTEX.findall(text))
    return Card(front.get("license", ""), front.get("base_model", ""), citation)


def _front_matter(text: str) -> dict[str, str]:
    """Return the plain values in a card's YAML front matter, between `---` lines; of a list only the first item."""
    first, *lines = text.splitlines() or [""]
    if first.strip() != "---" or "---" not in (line.strip() for line in lines):
        return {}
    values: dict[str, str] = {}
    key = ""
    for line in lines[: [line.strip() for line in lines].index("---")]:
        if found := re.fullmatch(r"(\w+):\s*([\"']?)([\w./+-]*)\2\s*", line):
            key, values[found[1]] = found[1], found[3]
        elif (item := re.fullmatch(r"\s*- *([\"']?)([\w./+-]+)\1\s*", line)) and values.get(key) == "":
            values[key] = item[2]
    return values


def text(
    opened: OpenRun,
    model: EncoderConfig,
    architecture: str,
    dtype: str,
    license: str,
    not_carried: Sequence[str],
) -> str:
    """Return the model card of an exported run, as Markdown with the front matter that the hub reads.

    model: config of the exported encoder, which is the run's or its generator's.
    architecture: the class of transformers that opens the export.
    license: empty if none is stated.
    not_carried: sentences about what the exported model lacks.
    """
    about = (
        f"`{architecture}` with {model.layers} layers, {model.heads} heads, width {model.width} and "
        f"{model.vocabulary_size} words, {dtype}, written by ag_jax from step {opened.step}."
    )
    return _text(opened, about, architecture, [], license, not_carried)


def translation_text(
    opened: OpenRun, steps: Sequence[int], architecture: str, dtype: str, license: str, not_carried: Sequence[str]
) -> str:
    """Return the model card of an exported translation model, as Markdown with the front matter that the hub reads.

    steps: steps of the checkpoints whose mean is exported.
    architecture, license, not_carried: as for `text`.
    """
    model, decoder, languages = opened.model.config, opened.model.decoder_config, opened.tokenizer.languages
    of = f" from {languages[0]} to {languages[1]}" if all(languages) else ""
    listed = ", ".join(map(str, steps))
    written = f"the mean of the checkpoints of steps {listed}" if len(steps) > 1 else f"step {listed}"
    about = (
        f"A model for translation{of}: `{architecture}` with {model.layers} layers of the encoder, {decoder.layers} of "
        f"the decoder, {model.heads} heads, width {model.width} and {model.vocabulary_size} words, {dtype}, written by "
        f"ag_jax from {written}."
    )
    example = [
        'batch = tokenizer(["A text to translate."], return_tensors="pt", padding=True)',
        "tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)",
    ]
    return _text(opened, about, architecture, example, license, not_carried)


def _text(
    opened: OpenRun, about: str, architecture: str, example: Sequence[str], license: str, not_carried: Sequence[str]
) -> str:
    """Return the model card of an exported run.

    about: what was exported.
    example: lines of Python that use `model` and `tokenizer`.
    """
    config = opened.config
    lines = [*_front(opened.origin, license, config.translates), f"# {config.title}", "", about]
    lines += _origin_lines(opened.origin)
    lines += ["", "```python", "from transformers import AutoTokenizer", f"from transformers import {architecture}", ""]
    lines += [
        f'model = {architecture}.from_pretrained("PATH")',
        'tokenizer = AutoTokenizer.from_pretrained("PATH")',
        *example,
        "```",
    ]
    lines += ["", "## Data", "", *_data(opened), "", "## Training", "", *_training(opened)]
    stated = license or "None is stated; choose one before you publish, as that of the text may bind you"
    lines += ["", "## Metrics", "", *_metrics(opened), "", "## Licence", "", f"{stated}.", ""]
    lines += _citation(opened.origin)
    lines += ["## What does not carry over", "", *(f"- {item}" for item in not_carried or ["Nothing is lost."]), ""]
    settings = json.dumps(_without_paths(config_reader.to_dict(config)), indent=2)
    return "\n".join([*lines, "## Config", "", "```json", settings, "```", ""])


def finetuned_text(
    tuned: FineTuned, architecture: str, dtype: str, license: str, not_carried: Sequence[str] = ()
) -> str:
    """Return the model card of an exported fine-tuned model, as Markdown with the front matter that the hub reads.

    not_carried: sentences about what transformers has no place for.
    """
    head, model = tuned.head, tuned.config
    lines = [*_front(tuned.origin, license), f"# {head.task or 'A task'}: {head.kind}", ""]
    lines.append(
        f"`{architecture}` with {model.layers} layers, {model.heads} heads and width {model.width}, {dtype}, "
        f"written by ag_jax. Its rows have up to {head.max_length} tokens."
    )
    lines += _origin_lines(tuned.origin)
    if head.kind == "regression":
        lines += ["", f"Its output is on a scale where 0 stands for {head.low:g} and 1 for {head.high:g}."]
    if head.labels:
        lines += ["", "Labels: " + ", ".join(head.labels) + "."]
    if not_carried:
        lines += ["", "## What does not carry over", "", *(f"- {item}" for item in not_carried)]
    stated = license or "None is stated; choose one before you publish, as those of data and model may bind you"
    return "\n".join([*lines, "", "## Licence", "", f"{stated}.", "", *_citation(tuned.origin)])


def _front(origin: Origin, license: str, translates: bool = False) -> list[str]:
    """Return the lines of a model card's YAML front matter, which the Hugging Face hub reads."""
    kind = ["pipeline_tag: translation"] if translates else []
    stated = {"license": license, "base_model": origin.base_model}
    values = [f"{key}: {value}" for key, value in stated.items() if value]
    return ["---", "library_name: transformers", *kind, *values, "tags: [ag_jax]", "---", ""]


def _origin_lines(origin: Origin) -> list[str]:
    """Return the lines that name the imported model that training started from; empty if there was none."""
    if not origin.model_type:
        return []
    base = f", of the base model `{origin.base_model}`" if origin.base_model not in ("", origin.name) else ""
    return ["", f"It began as `{origin.name}` ({origin.model_type}){base}."]


def _citation(origin: Origin) -> list[str]:
    """Return the lines of the section `Citation`: the BibTeX entries from the imported model's own card, if any."""
    if not origin.citation:
        return []
    return ["## Citation", "", f"Of `{origin.name}`, as its card has it:", "", "```bibtex", origin.citation, "```", ""]


def _without_paths(settings: dict[str, Any]) -> dict[str, Any]:
    """Remove directories from `settings`, because they mean nothing on another machine; return `settings`."""
    data = settings["data"]
    data["cache_dir"] = data["tokenizer"]["path"] = settings["training"]["initial_weights"] = None
    if data["format"] == "parallel":
        for name in ("source", "target", "validation_source", "validation_target"):
            data[name] = data[name] and _file_names(data[name])
        settings["translation"]["tests"] = [_file_names(test) for test in settings["translation"]["tests"]]
    return settings


def _file_names(files: str) -> str:
    """Return files, separated by commas or equals signs, without their directories."""
    return re.sub("[^,=]*/", "", files)


def _data(opened: OpenRun) -> list[str]:
    data = opened.config.data
    if opened.step == 0:
        return ["None here: the weights are those that the run began with."]
    if data.is_parallel:
        files = " and ".join(f"`{_file_names(side)}`" for side in (data.source, data.target) if side)
        return [f"Pairs of texts and translations, {files}, as rows of up to {data.sequence_length} tokens a side."]
    return [
        f"`{data.source}`, as rows of up to {data.sequence_length} tokens (`{data.format}`).",
        f"Of these, {data.masking.rate:.0%} are {workloads.workload_of(opened.config).changed}.",
    ]


def _training(opened: OpenRun) -> list[str]:
    training, optimizer, guidance = opened.config.training, opened.config.optimizer, opened.config.guidance
    if opened.step == 0:
        return ["None here."]
    guided = ", ".join(f"{name}: {count}" for name, count in opened.assignment)
    for attention, heads in (
        ("the decoder", guidance.decoder_heads),
        ("the decoder to the source", guidance.cross_heads),
    ):
        guided += f"; of {attention}: {heads}" if guided and heads else ""
    return [
        f"{opened.step:,} steps of {training.batch_size} rows.",
        f"AdamW with a peak learning rate of {optimizer.learning_rate:g} after {optimizer.warmup_steps:,} steps of "
        "warm-up.",
        f"Attention guidance: {f'{guidance.mode}, heads of a layer: {guided}' if guided else 'none'}.",
    ]


def _metrics(opened: OpenRun) -> list[str]:
    """Return a Markdown table of the metrics of the last validation up to the checkpoint's step."""
    try:
        rows = read_metrics(opened.workdir)
    except FileNotFoundError:
        rows = []
    rows = [row for row in rows if row["split"] == "validation" and 0 < row["step"] <= opened.step]
    if not rows:
        return ["None were recorded."]
    last = rows[-1]
    values = [
        f"| {name} | {value:.4f} |"
        for name, value in last.items()
        if name not in _POSITION and isinstance(value, float)
    ]
    return [f"On held-out text at step {last['step']:,}:", "", "| | |", "|---|---|", *values]
