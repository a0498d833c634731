"""The catalogue of downstream tasks by name, with their labels, metrics and file layouts."""

from collections.abc import Iterable, Mapping
from typing import Any

from ag_jax.data.tasks import schemes, superglue
from ag_jax.data.tasks.glue import ACCURACY, GLUE, NLI, SPLITS, TABLES
from ag_jax.data.tasks.task import QUESTION_AND_ANSWER, FileLayout, Task

_CHOICE: dict[str, Any] = {"kind": "choice", **ACCURACY}
_TAGGING: dict[str, Any] = {
    "kind": "tagging",
    "metric": "entity_f1",
    "metrics": ("entity_f1", "precision", "recall", "token_f1"),
}
_SPAN: dict[str, Any] = {"kind": "span", "form": "squad", "metric": "f1", "metrics": ("f1", "exact_match")}
_TESTED = "the released code of Adversarial Self-Attention chose epochs by the test set"


def _lines(folders: tuple[str, ...], columns: Mapping[str, Any]) -> FileLayout:
    return FileLayout("jsonl", {split: f"{split}.jsonl" for split in SPLITS}, folders, columns)


def _anli(name: str, *rounds: int) -> Task:
    """Return an ANLI task whose training, validation and test sets each join the given rounds, in the given order."""
    # The official release and TFDS call the premise `context` and write labels as e, n and c; files exported from the
    # Hugging Face hub call it `premise`.
    fields = {"first": "context", "second": "hypothesis", "id": "uid"}

    def files(folder: str, **names: str) -> dict[str, str]:
        return {split: "+".join(f"{folder}{number}/{file}.jsonl" for number in rounds) for split, file in names.items()}

    official = {"train": "train", "validation": "dev", "test": "test"}
    return Task(
        name=name,
        kind="classification",
        form="texts",
        labels=NLI,
        aliases={"e": "entailment", "n": "neutral", "c": "contradiction"},
        layouts=(
            FileLayout(
                "jsonl", files("r", **{split: split for split in SPLITS}), ("anli",), {**fields, "first": "premise"}
            ),
            FileLayout("jsonl", files("R", **official), ("anli_v1.0", "anli", "."), fields),
        ),
        prepared=(FileLayout("tfds", SPLITS, tuple(f"anli/r{number}" for number in rounds), fields),),
        legacy=_TESTED,
        legacy_validation="test",
        **ACCURACY,
    )


def _race(name: str, *levels: str) -> Task:
    splits = {"train": "train", "validation": "dev", "test": "test"}
    files = {split: "+".join(f"{folder}/{level}" for level in levels) for split, folder in splits.items()}
    return Task(
        name=name,
        form="race",
        pair_limit=QUESTION_AND_ANSWER,
        layouts=(FileLayout("tree", files, ("RACE", "race")),),
        prepared=(FileLayout("tfds", splits, tuple(f"race/{level}" for level in levels), {"id": "example_id"}),),
        **_CHOICE,
    )


def _squad(name: str, version: str, folders: tuple[str, ...], **settings: Any) -> Task:
    files = {"train": f"train-v{version}.json", "validation": f"dev-v{version}.json"}
    return Task(
        name=name,
        layouts=(FileLayout("articles", files, folders),),
        prepared=(FileLayout("tfds", {"train": "train", "validation": "validation"}, (f"squad/v{version}",)),),
        **{**_SPAN, **settings},
    )


def _xquad(language: str) -> Task:
    # A substitute for SQuAD where SQuAD is not available: one file, of which a tenth of the contexts is held out.
    # RoBERTa's English tokenizer splits 25 of the 1190 German answers into more than `answers.LONGEST` tokens: these
    # are never found.
    file = f"xquad.{language}.json"
    return Task(
        name=f"xquad_{language}",
        layouts=(FileLayout("articles", {"train": file, "validation": file}, ("xquad",)),),
        **_SPAN,
    )


def _filipino(name: str, labels: tuple[str, ...], *folders: str) -> Task:
    files = {"train": "train.csv", "validation": "validation.csv|valid.csv", "test": "test.csv"}
    layout = FileLayout("quoted", files, (name, *folders), {"first": "text"})
    return Task(name=name, kind="classification", form="texts", labels=labels, layouts=(layout,), **ACCURACY)


_OTHERS = (
    _anli("anli", 1, 2, 3),
    *(_anli(f"anli_r{number}", number) for number in (1, 2, 3)),
    Task(
        name="paws_qqp",
        kind="classification",
        form="paws",
        labels=("not_duplicate", "duplicate"),
        layouts=(
            _lines(("paws_qqp",), {"first": "sentence1", "second": "sentence2"}),
            # As published, with only one labelled set besides train: it is the test set here, and validation is a tenth
            # of train.
            FileLayout(
                "tsv",
                {"train": "train.tsv", "validation": "train.tsv", "test": "dev_and_test.tsv"},
                ("paws_qqp", "PAWS-QQP"),
                {"first": "sentence1", "second": "sentence2"},
                sign="dev_and_test.tsv",
            ),
            FileLayout("tsv", TABLES, ("paws_qqp", "PAWS-QQP"), {"first": "sentence1", "second": "sentence2"}),
        ),
        legacy=_TESTED,
        legacy_validation="test",
        metric="accuracy",
        metrics=("accuracy", "f1"),
    ),
    Task(
        name="hellaswag",
        form="hellaswag",
        layouts=(
            _lines(("hellaswag",), {"id": "ind"}),
            FileLayout(
                "jsonl",
                {"train": "hellaswag_train.jsonl", "validation": "hellaswag_val.jsonl", "test": "hellaswag_test.jsonl"},
                ("hellaswag", "HellaSWAG"),
                {"id": "ind"},
            ),
        ),
        prepared=(FileLayout("tfds", SPLITS, ("hellaswag",), {"ctx": "context"}),),
        **_CHOICE,
    ),
    Task(
        name="swag",
        form="swag",
        layouts=(
            FileLayout(
                "quoted",
                {"train": "train.csv", "validation": "val.csv", "test": "test.csv"},
                ("swag", "SWAG"),
                {"id": ""},
            ),
        ),
        **_CHOICE,
    ),
    _race("race", "middle", "high"),
    _race("race_middle", "middle"),
    _race("race_high", "high"),
    Task(
        name="dream",
        form="dream",
        pair_limit=QUESTION_AND_ANSWER,
        layouts=(
            FileLayout(
                "dialogues",
                {"train": "train.json", "validation": "validation.json|dev.json", "test": "test.json"},
                ("dream", "dream/data"),
            ),
        ),
        legacy=f"{_TESTED}, and read the first question about each dialogue only",
        legacy_validation="test",
        **_CHOICE,
    ),
    _squad("squad1", "1.1", ("squad1", "squad", "SQuAD", "squad1.1")),
    _squad(
        "squad2",
        "2.0",
        ("squad2", "squad", "SQuAD", "squad2.0"),
        answerable=False,
        metrics=(
            *("f1", "exact_match", "has_answer_f1", "has_answer_exact_match", "no_answer_accuracy"),
            *("best_f1", "best_exact_match"),
        ),
    ),
    _xquad("en"),
    _xquad("de"),
    Task(
        name="record",
        kind="choice",
        form="record",
        pair_limit=QUESTION_AND_ANSWER,
        layouts=(
            FileLayout("passages", {"train": "train.json", "validation": "dev.json"}, ("record", "ReCoRD")),
            FileLayout(
                "passages",
                superglue.FILES,
                ("record", "ReCoRD", *superglue.folders("ReCoRD")),
                {"id": "idx"},
            ),
        ),
        prepared=(FileLayout("tfds", SPLITS, ("super_glue/record",)),),
        metric="f1",
        metrics=("f1", "exact_match"),
    ),
    Task(
        name="wnut17",
        form="words",
        labels=schemes.all_tags(("corporation", "creative-work", "group", "location", "person", "product")),
        layouts=(
            FileLayout(
                "columns",
                {
                    "train": "train.conll|wnut17train.conll",
                    "validation": "validation.conll|emerging.dev.conll",
                    "test": "test.conll|emerging.test.annotated",
                },
                ("wnut17", "WNUT17", "emerging_entities_17"),
            ),
        ),
        **_TAGGING,
    ),
    Task(
        name="conll2003",
        form="chunked_words",
        labels=schemes.all_tags(("PER", "ORG", "LOC", "MISC")),
        layouts=(
            FileLayout(
                "columns",
                {
                    "train": "train.txt|eng.train|train.conll",
                    "validation": "valid.txt|eng.testa|validation.conll",
                    "test": "test.txt|eng.testb|test.conll",
                },
                ("conll2003", "CoNLL-2003", "CoNLL2003"),
            ),
        ),
        prepared=(
            FileLayout("tfds", {**SPLITS, "validation": "dev"}, ("conll2003",), {"words": "tokens", "tags": "ner"}),
        ),
        **_TAGGING,
    ),
    Task(
        # The data have no validation split: the paper cross-validates with ten folds over nine tags. It does not name
        # the four entity types; these are the types of the LORELEI corpora.
        name="oromo_ner",
        form="words",
        labels=schemes.all_tags(("PER", "ORG", "LOC", "GPE")),
        folds=10,
        layouts=(FileLayout("columns", {"train": "all.conll|train.conll|oromo_ner.conll"}, ("oromo_ner",)),),
        **_TAGGING,
    ),
    Task(
        name="oromo_news",
        kind="classification",
        form="texts",
        labels=("entertainment", "health", "politics", "sports", "technology"),
        layouts=(
            FileLayout(
                "quoted",
                {"train": "train.tsv", "validation": "validation.tsv|dev.tsv", "test": "test.tsv"},
                ("oromo_masakhanews", "oromo_news", "masakhanews/data/orm", "data/orm"),
                {"first": ("headline", "text"), "label": "category"},
                {"delimiter": "\t"},
            ),
        ),
        metric="macro_f1",
        metrics=("macro_f1", "accuracy"),
    ),
    _filipino("filipino_hatespeech", ("no_hate", "hate"), "hatespeech"),
    _filipino("filipino_sentiment", ("negative", "positive"), "sentiment"),
)

TASKS: dict[str, Task] = {task.name: task for task in (*GLUE, *_OTHERS, *superglue.SUPERGLUE)}


def find(name: str) -> Task:
    """Return the task called `name`. Raises ValueError, with all names, for an unknown name."""
    if name not in TASKS:
        raise ValueError(f"unknown task {name!r}: expected one of {', '.join(TASKS)}")
    return TASKS[name]


def ordered(names: Iterable[str]) -> list[str]:
    """Return names of tasks in the order of the catalogue, each once; custom tasks come last, in the given order."""
    distinct = list(dict.fromkeys(names))
    return [name for name in TASKS if name in distinct] + [name for name in distinct if name not in TASKS]
