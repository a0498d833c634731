"""The model card of an exported model: what it is, what it was trained on, how well, and what does not carry over."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ag_jax import configuration
from ag_jax.finetuned import FineTuned
from ag_jax.models.config import EncoderConfig
from ag_jax.run import OpenRun
from ag_jax.training.metrics import read_metrics

_POSITION = ("step", "split", "tokens_seen")


def text(
    opened: OpenRun,
    model: EncoderConfig,
    architecture: str,
    dtype: str,
    license: str,
    origin: Mapping[str, Any],
    not_carried: Sequence[str],
) -> str:
    """Markdown with the front matter that the hub reads."""
    config = opened.config
    stated = license or "None is stated; choose one before you publish, as that of the text may bind you"
    front = ["library_name: transformers", *([f"license: {license}"] if license else []), "tags: [ag_jax]"]
    lines = ["---", *front, "---", "", f"# {config.title}", ""]
    lines.append(
        f"`{architecture}` with {model.layers} layers, {model.heads} heads, width {model.width} and {model.vocabulary_size} words, "
        f"{dtype}, written by ag_jax from step {opened.step}."
    )
    if origin:
        lines += ["", f"It began as `{origin['name']}` ({origin['model_type']})."]
    lines += ["", "```python", "from transformers import AutoTokenizer", f"from transformers import {architecture}", ""]
    lines += [f'model = {architecture}.from_pretrained("PATH")', 'tokenizer = AutoTokenizer.from_pretrained("PATH")', "```"]
    lines += ["", "## Data", "", *_data(opened), "", "## Training", "", *_training(opened)]
    lines += ["", "## Metrics", "", *_metrics(opened), "", "## Licence", "", f"{stated}.", ""]
    lines += ["## What does not carry over", "", *(f"- {item}" for item in not_carried or ["Nothing is lost."]), ""]
    settings = json.dumps(_without_places(configuration.to_dict(config)), indent=2)
    return "\n".join([*lines, "## Config", "", "```json", settings, "```", ""])


def finetuned_text(tuned: FineTuned, architecture: str, dtype: str, license: str) -> str:
    """The same for a fine-tuned model."""
    head, model = tuned.head, tuned.config
    front = ["library_name: transformers", *([f"license: {license}"] if license else []), "tags: [ag_jax]"]
    lines = ["---", *front, "---", "", f"# {head.task or 'A task'}: {head.kind}", ""]
    lines.append(
        f"`{architecture}` with {model.layers} layers, {model.heads} heads and width {model.width}, {dtype}, written by ag_jax. "
        f"Its rows have up to {head.max_length} tokens."
    )
    if tuned.origin:
        lines += ["", f"It began as `{tuned.origin['name']}` ({tuned.origin['model_type']})."]
    if head.kind == "regression":
        lines += ["", f"Its output is on a scale where 0 stands for {head.low:g} and 1 for {head.high:g}."]
    if head.labels:
        lines += ["", "Labels: " + ", ".join(head.labels) + "."]
    stated = license or "None is stated; choose one before you publish, as those of data and model may bind you"
    return "\n".join([*lines, "", "## Licence", "", f"{stated}.", ""])


def _without_places(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings without directories, which say nothing elsewhere."""
    settings["data"]["cache_dir"] = settings["data"]["tokenizer"]["path"] = settings["training"]["initial_weights"] = ""
    return settings


def _data(opened: OpenRun) -> list[str]:
    data = opened.config.data
    if opened.step == 0:
        return ["None here: the weights are those that the run began with."]
    return [
        f"`{data.source}`, as rows of up to {data.sequence_length} tokens (`{data.format}`).",
        f"Of these, {data.masking.rate:.0%} are {'replaced' if opened.config.detects_replaced_tokens else 'masked'}.",
    ]


def _training(opened: OpenRun) -> list[str]:
    training, optimizer, guidance = opened.config.training, opened.config.optimizer, opened.config.guidance
    if opened.step == 0:
        return ["None here."]
    guided = ", ".join(f"{name}: {count}" for name, count in opened.assignment)
    return [
        f"{opened.step:,} steps of {training.batch_size} rows.",
        f"AdamW with a peak learning rate of {optimizer.learning_rate:g} after {optimizer.warmup_steps:,} steps of warm-up.",
        f"Attention guidance: {f'{guidance.mode}, heads of a layer: {guided}' if guided else 'none'}.",
    ]


def _metrics(opened: OpenRun) -> list[str]:
    """The newest validation up to the checkpoint's step."""
    try:
        rows = read_metrics(opened.workdir)
    except FileNotFoundError:
        rows = []
    rows = [row for row in rows if row["split"] == "validation" and 0 < row["step"] <= opened.step]
    if not rows:
        return ["None were recorded."]
    last = rows[-1]
    values = [
        f"| {name} | {value:.4f} |" for name, value in last.items() if name not in _POSITION and isinstance(value, float)
    ]
    return [f"On held-out text at step {last['step']:,}:", "", "| | |", "|---|---|", *values]
