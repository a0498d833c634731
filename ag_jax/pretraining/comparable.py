"""Warnings about runs whose validation losses are not comparable, because they predict different held-out tokens."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ag_jax.pretraining import arms, run_directory
from ag_jax.pretraining.config import ExperimentConfig
from ag_jax.settings import schema


def warnings(of_runs: Mapping[str, ExperimentConfig], what: str) -> list[str]:
    """Return a warning for each setting that makes runs compute their validation losses on different tokens.

    of_runs: the config of each arm or point, by name.
    what: `arms`, whose values are named one by one, or `points`.
    """
    settings_of = {name: _measured_on(config) for name, config in of_runs.items()}
    sentences = []
    for setting in dict.fromkeys(key for settings in settings_of.values() for key in settings):
        values = {name: settings.get(setting) for name, settings in settings_of.items()}
        distinct = dict.fromkeys(map(schema.shown, values.values()))
        if len(distinct) > 1:
            listed = arms.listed(values) if what == "arms" else ", ".join(distinct)
            sentences.append(
                f"The {what} are measured by different predictions, so that a lower loss does not mean a better model: "
                f"they differ in {setting}: {listed}"
            )
    return sentences


def _measured_on(config: ExperimentConfig) -> dict[str, Any]:
    """Return {name: value} of the settings that decide which tokens of a run's held-out text are predicted."""
    data = dataclasses.replace(config.data, masking=config.data.masking.for_evaluation)
    without = [*run_directory.MAY_DIFFER, "data.masking.count", "data.masking.static_copies"]
    without += ["data.pointers", "data.pointer_tokens"]  # kept beside the tokens, which are the same without them
    if data.validation_source is not None:
        without += ["data.validation_fraction", "data.validation_tokens"]
        if data.tokenizer.path is not None:
            without += ["data.source", "data.target", "data.skip_words", "data.max_words"]
    if data.tokenizer.path is not None:  # it has its own
        without += ["data.tokenizer.kind", "data.tokenizer.vocabulary_size", "data.tokenizer.lowercase"]
    flat = schema.flat({"data": dataclasses.asdict(data)})
    return {key: value for key, value in flat.items() if not schema.is_among(key, without)}
