"""Read from a model's directory how sentence-transformers computes vectors of texts with the model.

modules.json                        the modules in their order, such as Transformer, Pooling and Normalize
1_Pooling/config.json               what is taken of the last hidden states
sentence_bert_config.json           the longest text in tokens, and whether texts are put in lower case
config_sentence_transformers.json   the prompts, texts that are put before a text
tokenizer_config.json               the longest text in tokens, if sentence_bert_config.json does not have it
"""

import pathlib
import re
from typing import Any, Literal

from ag_jax.data.json_files import read_json
from ag_jax.interop.settings import LARGEST
from ag_jax.pretraining.origin import SentenceVectors

MODULES, POOLING = "modules.json", "1_Pooling/config.json"
TRANSFORMER, PROMPTS = "sentence_bert_config.json", "config_sentence_transformers.json"
NAMES = (MODULES, POOLING, TRANSFORMER, PROMPTS)  # besides the tokenizer's
# Modules whose effect is in `SentenceVectors`, or that have none outside training.
_MODULES = ("Transformer", "Pooling", "Normalize", "Dropout")
_POOLINGS: dict[str, Literal["mean", "first"]] = {"mean": "mean", "cls": "first"}


def read(directory: pathlib.Path) -> SentenceVectors:
    """Return how the model of a directory computes vectors of texts, by default if it has no such files.

    Raises ValueError, with the file's name, if a file is damaged.
    """
    modules, pooled = _read(directory / MODULES, list), _read(directory / POOLING, dict)
    if not modules and not pooled:
        return SentenceVectors()
    types = [str(module.get("type") if isinstance(module, dict) else module) for module in modules]
    names = [name.rpartition(".")[2] for name in types]
    modes = _modes(pooled)
    prompt = _prompt(_read(directory / PROMPTS, dict))
    unsupported = [f"the module {kind}" for kind, name in zip(types, names, strict=True) if name not in _MODULES]
    if len(modes) > 1 or modes[0] not in _POOLINGS:
        unsupported.append(f"the pooling {' and '.join(modes)}")
    if prompt and pooled.get("include_prompt") is False:
        unsupported.append("a pooling without the tokens of the prompt")
    settings = _read(directory / TRANSFORMER, dict)
    length = settings.get("max_seq_length") or _read(directory / "tokenizer_config.json", dict).get("model_max_length")
    return SentenceVectors(
        pooling=_POOLINGS.get(modes[0], "mean"),
        normalize="Normalize" in names,
        max_length=length if isinstance(length, int) and 0 < length <= LARGEST else None,
        lower_case=bool(settings.get("do_lower_case")),
        prompt=prompt,
        unsupported=tuple(unsupported),
    )


def _read(file: pathlib.Path, expected: type) -> Any:
    """Return the content of a JSON file, an empty one of the expected type if there is no file."""
    return read_json(file, expected) if file.exists() else expected()


def _modes(pooled: dict[str, Any]) -> list[str]:
    """Return the names of the poolings, whose results are joined, in the settings of a Pooling module."""
    named = pooled.get("pooling_mode")
    if named is not None:
        return list(map(str, named)) if isinstance(named, list) and named else [str(named)]
    # Earlier versions wrote a key for each pooling instead, such as pooling_mode_cls_token, with true or false.
    keys = [key for key, value in pooled.items() if key.startswith("pooling_mode_") and value]
    return [re.sub("^pooling_mode_|_tokens?$", "", key) for key in keys] or ["mean"]


def _prompt(settings: dict[str, Any]) -> str:
    """Return the prompt that is put before every text by default; empty if there is none."""
    prompts, name = settings.get("prompts"), settings.get("default_prompt_name")
    return str(prompts.get(name) or "") if isinstance(prompts, dict) and name is not None else ""
