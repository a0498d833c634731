"""The YAML front matter of a model card, the metadata that the Hugging Face hub reads.

It stands between two lines `---` at the head of a README.md. What is not known is left out.
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence

REPOSITORY = r"[\w.-]+(/[\w.-]+)?"  # NAME or OWNER/NAME on the hub
# The hub's name for what a class of transformers does, by the end of the class's name.
_PIPELINE_TAGS = {
    "MarianMTModel": "translation",
    "ForMaskedLM": "fill-mask",
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMultipleChoice": "multiple-choice",
    "Model": "feature-extraction",
}
# Names on the hub of the data sets of tasks.
_DATASETS = {
    "nyu-mll/glue": ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"),
    "aps/super_glue": ("boolq", "cb", "copa", "multirc", "record", "superglue_rte", "wic", "wsc"),
    "facebook/anli": ("anli", "anli_r1", "anli_r2", "anli_r3"),
    "Rowan/hellaswag": ("hellaswag",),
    "allenai/swag": ("swag",),
    "ehovy/race": ("race", "race_middle", "race_high"),
    "dataset-org/dream": ("dream",),
    "rajpurkar/squad": ("squad1",),
    "rajpurkar/squad_v2": ("squad2",),
    "google/xquad": ("xquad_en", "xquad_de"),
    "leondz/wnut_17": ("wnut17",),
    "eriktks/conll2003": ("conll2003",),
}
_LANGUAGE = r"[a-z]{2,3}|multilingual"
_NOT_TEXT = ("y", "n", "yes", "no", "on", "off", "true", "false", "null")  # in YAML; `no` is also Norwegian


@dataclasses.dataclass(frozen=True)
class Statements:
    """What a user states about an exported model, for its card.

    license: identifier of the licence, such as apache-2.0; empty for that of the imported model, if there is one.
    languages: codes of ISO 639, such as en; empty if not stated.
    datasets: names of the training data on the hub; empty for those of the task, if they are known.
    repository: name on the hub under which the model can be opened; empty if it is not on the hub.
    revision: branch of the repository that has the model; empty for the main one.

    Raises ValueError for values that the hub would not understand.
    """

    license: str = ""
    languages: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()
    repository: str = ""
    revision: str = ""

    def __post_init__(self):
        if self.license and not re.fullmatch(r"[\w.+-]+", self.license):
            raise ValueError(
                f"--license must be an identifier such as apache-2.0, mit or other, got {self.license!r}; "
                "https://huggingface.co/docs/hub/repositories-licenses lists them"
            )
        for language in self.languages:
            if not re.fullmatch(_LANGUAGE, language):
                raise ValueError(
                    f"--language must be codes of ISO 639 with commas, such as en or en,de, or multilingual, got "
                    f"{language!r}"
                )
        for name in self.datasets:
            if not re.fullmatch(REPOSITORY, name):
                raise ValueError(
                    f"--datasets must be names of data sets on the hub with commas, such as nyu-mll/glue, got {name!r}"
                )


def pipeline_tag(architecture: str) -> str:
    """Return the hub's name for what a class of transformers does, such as `fill-mask`; empty if it has none."""
    return next((tag for ending, tag in _PIPELINE_TAGS.items() if architecture.endswith(ending)), "")


def datasets_of(task: str) -> tuple[str, ...]:
    """Return the names on the hub of a task's data sets; () if they are not known."""
    return tuple(name for name, tasks in _DATASETS.items() if task in tasks)


def known_languages(names: Sequence[str | None]) -> tuple[str, ...]:
    """Return those of the names that are codes of languages, in order and without repetition."""
    return tuple(dict.fromkeys(name for name in names if name and re.fullmatch(_LANGUAGE, name)))


def write(values: Mapping[str, str | Sequence[str]]) -> list[str]:
    """Return the lines of a model card's YAML front matter, without keys whose text or list is empty."""
    lines = ["---"]
    for key, value in values.items():
        if isinstance(value, str):
            lines += [f"{key}: {_scalar(value)}"] if value else []
        elif value:
            lines += [f"{key}:", *(f"- {_scalar(item)}" for item in value)]
    return [*lines, "---"]


def read(text: str) -> dict[str, str]:
    """Return {key: value} of the plain texts in a model card's front matter; of a list, only the first item."""
    first, *lines = text.splitlines() or [""]
    if first.strip() != "---" or "---" not in (line.strip() for line in lines):
        return {}
    values: dict[str, str] = {}
    key = ""
    for line in lines[: [line.strip() for line in lines].index("---")]:
        if entry := re.fullmatch(r"(\w+):\s*([\"']?)([\w./+-]*)\2\s*", line):
            key, values[entry[1]] = entry[1], entry[3]
        elif (item := re.fullmatch(r"\s*- *([\"']?)([\w./+-]+)\1\s*", line)) and values.get(key) == "":
            values[key] = item[2]
    return values


def _scalar(text: str) -> str:
    """Return a text as YAML, in quotes where it could be read as something else."""
    plain = re.fullmatch(r"[A-Za-z][\w./+-]*", text) and text.lower() not in _NOT_TEXT
    return text if plain else json.dumps(text, ensure_ascii=False)
