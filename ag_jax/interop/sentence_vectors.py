"""Read and write the files that tell sentence-transformers how to compute vectors of texts with a model.

modules.json                        the modules in their order, such as Transformer, Pooling and Normalize, with the
                                    folder of each
1_Pooling/config.json               what is taken of the last hidden states
sentence_bert_config.json           the longest text in tokens, and whether texts are put in lower case
config_sentence_transformers.json   the prompts, texts that are put before a text
tokenizer_config.json               the longest text in tokens, if sentence_bert_config.json does not have it
"""

import json
import pathlib
import re
from typing import Any

from ag_jax.data.json_files import read_json, reading
from ag_jax.interop.settings import LARGEST
from ag_jax.models.config import Pooling
from ag_jax.pretraining.origin import SentenceVectors

MODULES, POOLING, PROMPTS = "modules.json", "1_Pooling", "config_sentence_transformers.json"
# Names of the same file: early versions of sentence-transformers named it after the family of the model.
TRANSFORMER = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
NAMES = (MODULES, f"{POOLING}/config.json", "*_Pooling/config.json", *TRANSFORMER, PROMPTS)  # besides the tokenizer's
# Modules whose effect is in `SentenceVectors`, or that have none outside training.
_MODULES = ("Transformer", "Pooling", "Normalize", "Dropout")
_POOLINGS: dict[str, Pooling] = {"mean": "mean", "cls": "first"}


def read(directory: pathlib.Path) -> SentenceVectors:
    """Read a model's settings of text vectors from its sentence-transformers files; the defaults without such files.

    What is not supported, and a damaged file, is named in `unsupported`: other uses of the model do not need the files.
    """
    try:
        with reading(directory, "copy its files anew"):
            return _read(directory)
    except ValueError as error:
        return SentenceVectors(unsupported=(f"settings that cannot be read ({error})",))


def _read(directory: pathlib.Path) -> SentenceVectors:
    modules = _json(directory / MODULES, list)
    by_name = {module["type"].rpartition(".")[2]: module for module in modules}
    folder = by_name.get("Pooling", {}).get("path") or POOLING
    place = directory / folder / "config.json"
    if not modules and not place.exists():
        return SentenceVectors()
    unsupported = [f"the module {module['type']}" for name, module in by_name.items() if name not in _MODULES]
    if not place.exists():
        unsupported.append(f"the pooling in {folder}/config.json, which is missing")
    # Problems are kept and not raised: the encoder may be wanted without the vectors.
    pooled = _json(place, dict)
    modes = _modes(pooled)
    if len(modes) > 1 or modes[0] not in _POOLINGS:
        unsupported.append(f"the pooling {' and '.join(modes)}")
    prompt = _prompt(_json(directory / PROMPTS, dict))
    if prompt and pooled.get("include_prompt") is False:
        unsupported.append("a pooling without the tokens of the prompt")
    contents = (_json(directory / name, dict) for name in TRANSFORMER)
    texts: dict[str, Any] = next(filter(None, contents), {})
    length = texts.get("max_seq_length") or _json(directory / "tokenizer_config.json", dict).get("model_max_length")
    return SentenceVectors(
        pooling=_POOLINGS.get(modes[0], "mean"),
        normalize="Normalize" in by_name,
        max_length=length if isinstance(length, int) and 0 < length <= LARGEST else None,
        lower_case=bool(texts.get("do_lower_case")),
        strip=True,
        prompt=prompt,
        unsupported=tuple(unsupported),
    )


def write(vectors: SentenceVectors, width: int, directory: pathlib.Path) -> None:
    """Write the files by which sentence-transformers computes vectors of texts with the settings `vectors`.

    Nothing is written for the defaults, nor for vectors that need something that is not supported.

    width: the number of features of a hidden state.
    """
    if vectors.unsupported or vectors == SentenceVectors():
        return
    # Types and folders are those that sentence-transformers itself writes; the first module has the model's folder.
    names = ["Transformer", "Pooling", *(["Normalize"] if vectors.normalize else [])]
    paths = ["", POOLING, "2_Normalize"]
    modules = [
        {"idx": index, "name": str(index), "path": paths[index], "type": f"sentence_transformers.models.{name}"}
        for index, name in enumerate(names)
    ]
    pooling = {
        "word_embedding_dimension": width,
        "pooling_mode_cls_token": vectors.pooling == "first",
        "pooling_mode_mean_tokens": vectors.pooling == "mean",
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    prompts = {"prompts": {"default": vectors.prompt}, "default_prompt_name": "default"} if vectors.prompt else {}
    contents: dict[str, Any] = {
        MODULES: modules,
        f"{POOLING}/config.json": pooling,
        TRANSFORMER[0]: {"max_seq_length": vectors.max_length, "do_lower_case": vectors.lower_case},
        PROMPTS: prompts,
    }
    (directory / POOLING).mkdir()
    for name, content in contents.items():
        (directory / name).write_text(json.dumps(content, indent=2) + "\n")


def _json(file: pathlib.Path, expected: type) -> Any:
    """Return the content of a JSON file, an empty one of the expected type if there is no file."""
    return read_json(file, expected) if file.exists() else expected()


def _modes(pooled: dict[str, Any]) -> list[str]:
    """Return the names of the poolings in the settings of a Pooling module, such as `mean`.

    The module joins their results.
    """
    modes = pooled.get("pooling_mode")
    if modes is not None:
        return [modes] if isinstance(modes, str) else list(modes)
    # Earlier versions of sentence-transformers wrote a key for each pooling, such as pooling_mode_cls_token, with true
    # or false.
    keys = [key for key, value in pooled.items() if key.startswith("pooling_mode_") and value]
    return [re.sub("^pooling_mode_|_tokens?$", "", key) for key in keys] or ["mean"]


def _prompt(settings: dict[str, Any]) -> str:
    """Return the prompt that is put before every text by default; empty if there is none."""
    name = settings.get("default_prompt_name")
    return "" if name is None else str(settings["prompts"].get(name) or "")
