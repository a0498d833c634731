"""Model cards: written for exported models (data, training, metrics, origin), and read from imported ones."""

import dataclasses
import importlib.metadata
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ag_jax.data.config import MaskingConfig
from ag_jax.interop import front_matter
from ag_jax.interop.finetuned import FineTuned
from ag_jax.interop.front_matter import Statements
from ag_jax.models.config import EncoderConfig
from ag_jax.pretraining import workloads
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.pretraining.open_run import OpenRun
from ag_jax.pretraining.origin import Origin
from ag_jax.settings import schema
from ag_jax.training.checkpoint import saved_metrics

_POSITION = ("step", "split", "tokens_seen")
# Settings that say nothing about the model, or that are places on one machine.
_LEFT_OUT: tuple[str, ...] = (
    *("title", "comparison.", "search.", "inspection.", "mesh.", "model.remat", "model.scan_layers", "model.attention"),
    *("data.cache_dir", "data.tokenizer.path", "data.verify_cache", "data.accept_changed_text"),
    *("data.validation_rows", "data.expected_tokens", "data.expected_gigabytes", "adversarial.masking.trace"),
    *("training.log_every", "training.evaluate_every", "training.checkpoint_every", "training.keep_"),
    *(
        "training.milestones",
        "training.step_timeout",
        "training.initial_weights",
        "training.branch_from",
        "training.tensorboard",
    ),
    "training.wandb",
)
_SOURCES = tuple(
    f"data.{part}{name}" for part in ("", "validation_") for name in ("source", "target", "alignments")
)  # names of files, as far as they are no data sets
_BIBTEX = re.compile(r"^```[^\n`]*\n\s*(@\w+\{.*?)^```", re.MULTILINE | re.DOTALL)
OPTIMIZERS = {"adamw": "AdamW", "lion": "Lion", "muon": "Muon, and AdamW for embeddings, heads, biases and norms,"}


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
    """Read the licence, base model and citations from a README.md; an empty `Card` if there is no such file."""
    text = file.read_text(encoding="utf-8-sig", errors="replace") if file.exists() else ""
    front = front_matter.read(text)
    citation = "\n\n".join(entry.strip() for entry in _BIBTEX.findall(text))
    return Card(front.get("license", ""), front.get("base_model", ""), citation)


def text(
    opened: OpenRun,
    model: EncoderConfig,
    architecture: str,
    dtype: str,
    stated: Statements,
    place: str,
    not_carried: Sequence[str],
) -> str:
    """Return the model card of a run's exported encoder or generator, as Markdown with the front matter of the hub.

    opened: the run.
    model: config of the exported encoder, which is the run's or its generator's.
    architecture: the class of transformers that opens the export.
    dtype: type of the exported weights.
    stated: what the user states about the model.
    place: the name or directory that the export is opened by.
    not_carried: sentences about what the exported model lacks.
    """
    about = (
        f"`{architecture}` with {model.layers} layers, {model.heads} heads, width {model.width} and "
        f"{model.vocabulary_size} words, {dtype}, written by ag_jax from step {opened.step}."
    )
    return _text(opened, about, architecture, [], stated, place, not_carried)


def translation_text(
    opened: OpenRun,
    steps: Sequence[int],
    architecture: str,
    dtype: str,
    stated: Statements,
    place: str,
    not_carried: Sequence[str],
) -> str:
    """Return the model card of an exported translation model, as Markdown with the front matter that the hub reads.

    steps: steps of the checkpoints whose mean is exported.
    architecture, stated, place, not_carried: as for `text`.
    """
    model, decoder, languages = opened.model.config, opened.model.decoder_config, opened.tokenizer.languages
    direction = f" from {languages[0]} to {languages[1]}" if all(languages) else ""
    numbers = ", ".join(map(str, steps))
    weights = f"the mean of the checkpoints of steps {numbers}" if len(steps) > 1 else f"step {numbers}"
    about = (
        f"A model for translation{direction}: `{architecture}` with {model.layers} layers of the encoder, "
        f"{decoder.layers} of the decoder, {model.heads} heads, width {model.width} and {model.vocabulary_size} words, "
        f"{dtype}, written by ag_jax from {weights}."
    )
    example = [
        'batch = tokenizer(["A text to translate."], return_tensors="pt", padding=True)',
        "tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)",
    ]
    if not stated.languages:
        stated = dataclasses.replace(stated, languages=front_matter.known_languages(languages))
    return _text(opened, about, architecture, example, stated, place, not_carried)


def _text(
    opened: OpenRun,
    about: str,
    architecture: str,
    example: Sequence[str],
    stated: Statements,
    place: str,
    not_carried: Sequence[str],
) -> str:
    """Return the model card of an exported run as Markdown.

    about: what was exported.
    example: lines of Python that use `model` and `tokenizer`.
    """
    config, license = opened.config, stated.license or opened.origin.license
    attack = config.adversarial.method if opened.step else "none"
    tags = ["attention-guidance"] if opened.step and config.guidance.mode != "none" else []
    tags += ["adversarial-training", attack.replace("_", "-")] if attack != "none" else []
    lines = [*_front(opened.origin, architecture, stated, (), tags), "", f"# {config.title}", "", about]
    lines += _origin_lines(opened.origin)
    lines += _usage(architecture, stated, place, example)
    lines += ["", "## Data", "", *_data(opened), "", "## Training", "", *_training(opened)]
    lines += ["", "## Metrics", "", *_metrics(opened), "", *_licence(license, "that of the text"), ""]
    lines += _citation(opened.origin)
    lines += ["## What does not carry over", "", *(f"- {item}" for item in not_carried or ["Nothing is lost."]), ""]
    return "\n".join([*lines, *_settings(opened), ""])


def finetuned_text(
    tuned: FineTuned,
    architecture: str,
    dtype: str,
    stated: Statements,
    place: str,
    not_carried: Sequence[str] = (),
    result: Mapping[str, Any] | None = None,
) -> str:
    """Return the model card of an exported fine-tuned model, as Markdown with the front matter that the hub reads.

    stated, place: as for `text`.
    not_carried: sentences about what transformers has no place for.
    result: the `result.json` of the trial, None if there is none.
    """
    head, model, license = tuned.head, tuned.config, stated.license or tuned.origin.license
    tags = ["attention-guidance"] if tuned.assignment.counts else []
    lines = [*_front(tuned.origin, architecture, stated, front_matter.datasets_of(head.task), tags), ""]
    lines += [f"# {head.task or 'A task'}: {head.kind}", ""]
    lines.append(
        f"`{architecture}` with {model.layers} layers, {model.heads} heads and width {model.width}, {dtype}, "
        f"written by ag_jax. Its rows have up to {head.max_length} tokens."
    )
    lines += _origin_lines(tuned.origin)
    example = []
    if head.kind == "classification":
        example = ["", 'logits = model(**tokenizer("A text.", return_tensors="pt")).logits']
        example += ["print(model.config.id2label[logits.argmax(-1).item()])"]
    elif head.kind == "multilabel":
        example = ["", 'logits = model(**tokenizer("A text.", return_tensors="pt")).logits[0]']
        example += ["print([model.config.id2label[index] for index, logit in enumerate(logits) if logit > 0])"]
    lines += _usage(architecture, stated, place, example)
    if head.kind == "regression":
        lines += ["", f"Its output is on a scale where 0 stands for {head.low:g} and 1 for {head.high:g}."]
    if head.labels:
        lines += ["", "Labels: " + ", ".join(head.labels) + "."]
    lines += _result(result) if result and "metrics" in result else []
    if not_carried:
        lines += ["", "## What does not carry over", "", *(f"- {item}" for item in not_carried)]
    return "\n".join([*lines, "", *_licence(license, "those of data and model"), "", *_citation(tuned.origin)])


def _front(
    origin: Origin, architecture: str, stated: Statements, datasets: Sequence[str], tags: Sequence[str]
) -> list[str]:
    """Return the lines of a model card's YAML front matter, which the Hugging Face hub reads.

    datasets: names of the training data on the hub, if the user states none.
    tags: what the model was trained with.
    """
    return front_matter.write(
        {
            "language": stated.languages,
            "license": stated.license or origin.license,
            "library_name": "transformers",
            "pipeline_tag": front_matter.pipeline_tag(architecture),
            "base_model": origin.base_model,
            "datasets": stated.datasets or tuple(datasets),
            "tags": ("ag_jax", *tags),
        }
    )


def _usage(architecture: str, stated: Statements, place: str, example: Sequence[str]) -> list[str]:
    """Return the card's lines of Python that open the exported model, followed by the lines `example` that use it.

    `example` uses the variables `model` and `tokenizer`.
    """
    lines = ["", "```python", "from transformers import AutoTokenizer", f"from transformers import {architecture}", ""]
    if not stated.repository:
        lines.append("# The directory of this card: run this in the directory that contains it, or give its path.")
    arguments = json.dumps(place) + (f", revision={json.dumps(stated.revision)}" if stated.revision else "")
    return [
        *lines,
        f"model = {architecture}.from_pretrained({arguments})",
        f"tokenizer = AutoTokenizer.from_pretrained({arguments})",
        *example,
        "```",
    ]


def _licence(license: str, sources: str) -> list[str]:
    name = license or f"None is stated; choose one before you publish, as {sources} may bind you"
    return ["## Licence", "", f"{name}."]


def _origin_lines(origin: Origin) -> list[str]:
    """Return the lines that name the imported model that training started from; empty if there was none."""
    if not origin.model_type:
        return []
    base = f", of the base model `{origin.base_model}`" if origin.base_model not in ("", origin.name) else ""
    commit = f" at the commit {origin.commit}" if origin.commit else ""
    return ["", f"It began as `{origin.name}` ({origin.model_type}){commit}{base}."]


def _citation(origin: Origin) -> list[str]:
    """Return the lines of the section `Citation`: the BibTeX entries from the imported model's own card, if any."""
    if not origin.citation:
        return []
    return ["## Citation", "", f"Of `{origin.name}`, as its card has it:", "", "```bibtex", origin.citation, "```", ""]


def _settings(opened: OpenRun) -> list[str]:
    """Return the model card's section with the settings that shaped the model and differ from their defaults.

    Sections that were not in effect are left out, as are those of training where there was none.
    """
    config = opened.config
    config = dataclasses.replace(config, adversarial=config.adversarial.in_effect)
    settings, defaults = (schema.flat(schema.to_dict(one)) for one in (config, ExperimentConfig()))
    left_out = list(_LEFT_OUT)
    if not opened.step:
        left_out += ["seed", "data.", "training.", "optimizer.", "guidance.", "adversarial.", "translation."]
    left_out += ["guidance."] if config.guidance.mode == "none" else []
    left_out += ["data.masking."] if config.translates else ["decoder.", "translation.", "decoding."]
    left_out += ["replaced_tokens."] if config.replaced_tokens.generator == "none" else []
    lines = [
        f"{name}={_typed(name, value)}"
        for name, value in settings.items()
        if value != defaults[name] and not schema.is_among(name, left_out)
    ]
    if not lines:
        return ["## Settings", "", f"All settings are the defaults of {_program()}."]
    about = f"Those that differ from the defaults of {_program()}; `ag-jax help NAME` explains each."
    return ["## Settings", "", about, "", "```", *lines, "```"]


def _program() -> str:
    try:
        return f"ag_jax {importlib.metadata.version('ag_jax')}"
    except importlib.metadata.PackageNotFoundError:  # a checkout that is not installed
        return "ag_jax"


def _typed(name: str, value: Any) -> str:
    """Return a setting's value as it is typed on the command line, without the directories in names of files."""
    if name == "translation.tests":
        return ",".join(map(_file_names, value))
    if name in _SOURCES and value:
        return _source_names(value)
    return schema.shown(tuple(value) if isinstance(value, list) else value)


def _source_names(sources: str) -> str:
    """Return the text of `data.source` without the directories that its files and folders are in.

    Names of TensorFlow Datasets, names at the Hugging Face hub, and weights stay.
    """
    names = []
    for source in re.split("([,=])", sources):
        path, weight = re.fullmatch(r"(.*?)(:[\d.]+)?", source, re.DOTALL).groups("")  # type: ignore[union-attr]
        of_hub = path.removeprefix("hf:").partition(":")[0]
        is_name = path.startswith("hf:") and of_hub.count("/") <= 1 and not of_hub.startswith((".", "~", "/"))
        if not path.startswith("tfds:") and not is_name:
            path = re.sub(r".*/(?=[^/])", "", path)
        names.append(path + weight)
    return "".join(names)


def _file_names(files: str) -> str:
    """Return a list of files, as text separated by commas or equals signs, without their directories."""
    return re.sub("[^,=]*/", "", files)


def _data(opened: OpenRun) -> list[str]:
    data = opened.config.data
    if opened.step == 0:
        return ["None here: the weights are those that the run began with."]
    if data.is_parallel:
        files = " and ".join(f"`{_file_names(side)}`" for side in (data.source, data.target) if side)
        return [f"Pairs of texts and translations, {files}, as rows of up to {data.sequence_length} tokens a side."]
    return [
        f"`{_source_names(data.source)}`, as rows of up to {data.sequence_length} tokens (`{data.format}`).",
        f"Of the tokens, {_rates(data.masking)} are {workloads.workload_of(opened.config).changed}"
        f"{', whole words together' if data.masking.unit == 'word' else ''}.",
    ]


def _rates(masking: MaskingConfig) -> str:
    phases = zip(masking.earlier_rates, masking.earlier_rates_until, strict=True)
    return ", ".join([*(f"{rate:.0%} up to step {until:,}" for rate, until in phases), f"{masking.rate:.0%}"])


def _training(opened: OpenRun) -> list[str]:
    training, optimizer, guidance = opened.config.training, opened.config.optimizer, opened.config.guidance
    if opened.step == 0:
        return ["None here."]
    phases = zip(training.earlier_batch_sizes, training.earlier_batch_sizes_until, strict=True)
    smaller = "".join(f", {size} up to step {until:,}" for size, until in phases)
    guided = ", ".join(f"{name}: {count}" for name, count in opened.assignment.counts)
    guided += f" in {opened.assignment.where}" if opened.assignment.where else ""
    for attention, heads in (
        ("the decoder", guidance.decoder_heads),
        ("the decoder to the source", guidance.cross_heads),
    ):
        guided += f"; of {attention}: {heads}" if guided and heads else ""
    return [
        f"{opened.step:,} steps of {training.batch_size} rows{smaller}.",
        f"{OPTIMIZERS[optimizer.kind]} with a peak learning rate of {optimizer.learning_rate:g} after "
        f"{optimizer.warmup_steps:,} step{'s' * (optimizer.warmup_steps != 1)} of warm-up.",
        f"Attention guidance: {f'{guidance.mode}, heads of a layer: {guided}' if guided else 'none'}.",
    ]


def _metrics(opened: OpenRun) -> list[str]:
    """Return a Markdown table of the metrics of the last validation up to the checkpoint's step."""
    try:
        rows = saved_metrics(opened.workdir)
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


def _result(result: Mapping[str, Any]) -> list[str]:
    """Return the model card's sections on training and metrics of a fine-tuning trial, from its `result.json`."""
    examples = result["examples"]
    swept = "".join(f", {name.replace('_', ' ')} {value:g}" for name, value in result.get("swept", {}).items())
    lines = [
        *("", "## Training", ""),
        f"{result['steps']:,} steps of {result['batch_size']} of the {examples['train']:,} training examples, with a "
        f"peak learning rate of {result['learning_rate']:g}{swept} and seed {result['seed']}; the weights are those "
        f"after epoch {result['best_epoch']} of {len(result['epochs'])}.",
        *("", "## Metrics", ""),
    ]
    sets = {"validation": result["metrics"], **result["others"]}
    lines += ["| examples | metric | |", "|---|---|---|"]
    lines += [
        f"| {name} ({examples[name]:,}) | {metric} | {value:.4f} |"
        for name, metrics in sets.items()
        for metric, value in metrics.items()
    ]
    return lines
