"""Task heads in the format of `transformers`, for import and export: names and settings by family and kind of task."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from ag_jax.data.json_files import reading
from ag_jax.interop import catalogue, marian
from ag_jax.interop.families import Family, HeadSettings, dense, norm
from ag_jax.interop.finetuned import Head
from ag_jax.interop.modernbert import MODERNBERT
from ag_jax.interop.names import Name
from ag_jax.models.config import EncoderConfig
from ag_jax.models.heads import STYLES


@dataclasses.dataclass(frozen=True)
class ExportedHead:
    """How `transformers` stores one kind of task head: its class, its layers, and its keys in config.json.

    ending: of the class's name; empty if there is no class.
    layer: the name of its only layer; None for a head with a dense layer and a classifier.
    column: of `_OF_TEXTS`, for a head with these two.
    has_labels: whether config.json names classes.
    problem_type: the value in config.json, None if the key is not written.
    left_out: the layer of the head, by its name here, that has no place in the class; None if there is none.
    not_carried: what the class does without this layer.
    """

    ending: str
    layer: str | None = None
    column: int = 0
    has_labels: bool = False
    problem_type: str | None = None
    left_out: str | None = None
    not_carried: str = ""


_SEQUENCE, _CHOICE = "ForSequenceClassification", "ForMultipleChoice"
HEADS = {
    "classification": ExportedHead(_SEQUENCE, has_labels=True, problem_type="single_label_classification"),
    "multilabel": ExportedHead(_SEQUENCE, has_labels=True, problem_type="multi_label_classification"),
    "regression": ExportedHead(_SEQUENCE, has_labels=True, problem_type="regression"),
    "choice": ExportedHead(_CHOICE, column=1),
    "ranking": ExportedHead(_CHOICE, column=1),  # a pairwise ranking is a choice between two
    "tagging": ExportedHead("ForTokenClassification", layer="classifier", has_labels=True),
    "span": ExportedHead("ForQuestionAnswering", layer="qa_outputs"),
    "span_or_none": ExportedHead(
        "ForQuestionAnswering",
        layer="qa_outputs",
        left_out="refusal",
        not_carried="The classifier that decides whether a question has an answer: transformers has no class with one, "
        "and decides by the logits of the first token as start and end, which were trained beside the classifier.",
    ),
    "referent": ExportedHead(""),
}
_OURS, _DENSE, _NORM = "task_head/classifier", "task_head/dense", "task_head/norm"
# Names of the dense layer and classifier of a head for texts, by family: for one text or a pair, and for a choice.
_OF_TEXTS = {
    "bert": (("bert.pooler.dense", "classifier"), ("bert.pooler.dense", "classifier")),
    "roberta": (("classifier.dense", "classifier.out_proj"), ("roberta.pooler.dense", "classifier")),
    "electra": (("classifier.dense", "classifier.out_proj"), ("sequence_summary.summary", "classifier")),
    "deberta": (("pooler.dense", "classifier"), ("pooler.dense", "classifier")),
}
# Options of heads for texts in config.json, each with its only supported value.
_ONLY = {
    "pooler_hidden_act": "gelu",
    "summary_activation": "gelu",
    "summary_type": "first",
    "summary_use_proj": True,
}


def names(family: Family, kind: str) -> tuple[Name, ...]:
    """Return the name table of a kind of task head: for each parameter of the head, the tensor of `transformers`."""
    head = HEADS[kind]
    if family is MODERNBERT:  # alike in all of its classes
        return *dense("head.dense", _DENSE), *norm("head.norm", _NORM), *dense("classifier", _OURS)
    if head.layer:
        return dense(head.layer, _OURS)
    hidden, classifier = _OF_TEXTS[family.root][head.column]
    return *dense(hidden, _DENSE), *dense(classifier, _OURS)


def style_of(config: EncoderConfig, heads: Collection[str], model_type: str) -> str:
    """Return the style of a new task head on a pre-trained encoder, a key of `models.heads.STYLES`.

    It is that of the imported model's family, or of the most similar family if the model was not imported.

    heads: names of the model's heads for pre-training.
    model_type: family of the imported model, empty if the model was not imported. Translation models have no such head.
    """
    if model_type == MODERNBERT.model_type or config.positions == "rotary":
        return "modernbert"
    if model_type not in ("", marian.MODEL_TYPE):
        return catalogue.named(model_type).root
    if config.relative.terms:
        return "deberta"
    if "discriminator_head" in heads or config.is_projected:
        return "electra"
    return "bert" if "next_head" in heads else "roberta"


def misfits(family: Family, exported: Head) -> list[str]:
    """Return the reasons why a task head cannot be exported as a model of a family; empty if it can."""
    head, style = HEADS[exported.kind], exported.style
    if not head.ending:
        return ["transformers has no class that ranks phrases for a pronoun"]
    if family is MODERNBERT:
        return (
            [] if STYLES[style].normalizes else [f"its heads of tasks have a LayerNorm, that of style {style} has not"]
        )
    if STYLES[style].normalizes:
        return [f"its heads of tasks have no LayerNorm, that of style {style} has one"]
    if head.ending == _CHOICE and family.model_type == "deberta":
        return ["transformers has no DebertaForMultipleChoice"]
    if not head.layer and exported.pooling != "first":
        return [f"its heads for texts read the first token, not the {exported.pooling} over all tokens"]
    if not head.layer and STYLES[family.root].activation is not STYLES[style].activation:
        return [f"its heads for texts have another activation than that of style {style}"]
    return []


def settings(family: Family, head: Head, config: EncoderConfig) -> dict[str, Any]:
    """Return the keys and values of config.json that describe a task head, given the config of the encoder."""
    stored_head = HEADS[head.kind]
    common = family.write_heads(HeadSettings(head.pooling, head.dropout), config)
    if not stored_head.has_labels:
        return common
    labels = head.labels or ("LABEL_0",)
    values = common | {
        "id2label": dict(enumerate(labels)),
        "label2id": {label: index for index, label in enumerate(labels)},
    }
    return values | ({"problem_type": stored_head.problem_type} if stored_head.problem_type else {})


def kind_of(family: Family, architectures: Collection[str]) -> str | None:
    """Return the kind of task for which a class in `architectures` has a head; None if no class has a task head.

    architectures: names of classes of `transformers`, as in config.json.
    """
    endings = {name.removeprefix(family.classes) for name in architectures}
    return next((kind for kind, head in HEADS.items() if head.ending and head.ending in endings), None)


def read(family: Family, kind: str, values: Mapping[str, Any], stated: HeadSettings, max_length: int) -> Head:
    """Return the settings of an imported model's task head.

    family: the model family, which decides the head's style.
    kind: the kind of the model's class. A classification becomes `multilabel` if `problem_type` says so, and otherwise
        `regression` if it has one label.
    values: the content of config.json, which has the labels.
    stated: pooling and dropout rate that config.json states.
    Raises ValueError for options that are not supported.
    """
    problems = [
        f"{key}={values[key]!r} is not supported, only {supported!r}"
        for key, supported in _ONLY.items()
        # Heads of a single layer, and those of ModernBERT, do not read these keys.
        if not HEADS[kind].layer and family is not MODERNBERT and values.get(key, supported) != supported
    ]
    labels, problem_type = _labels(values), values.get("problem_type")
    # transformers has one class for all three, and takes a single label without a problem_type for a number.
    if kind == "classification" and problem_type == HEADS["multilabel"].problem_type:
        kind = "multilabel"
    elif kind == "classification" and (problem_type == "regression" or len(labels) == 1):
        kind = "regression"
    if problems:
        raise ValueError(
            "config.json has options of a task head that ag-jax does not support; choose a model without them:\n"
            + "\n".join(f"  {problem}" for problem in problems)
        )
    head_labels = labels if kind in ("classification", "multilabel", "tagging") else ()
    style = "modernbert" if family is MODERNBERT else family.root
    return Head("", kind, head_labels, style, max_length=max_length, dropout=stated.dropout, pooling=stated.pooling)


def _labels(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the labels in order, from `id2label`; LABEL_0 and LABEL_1 if config.json lacks this key.

    transformers leaves the key out for two labels without names.
    """
    names_by_index = values.get("id2label") or {0: "LABEL_0", 1: "LABEL_1"}
    with reading("id2label in config.json", "map the numbers 0, 1, ... to names of labels"):
        by_index = {int(index): str(label) for index, label in names_by_index.items()}
        return tuple(by_index[index] for index in range(len(by_index)))
