"""Custom tasks: settings that name the user's own files and columns, the task that they define, and its examples.

    settings = CustomTask(kind="classification", train="a.csv", text="review", label="stars")
    settings = resolved("reviews", settings, root="")       # reads the labels from a.csv
    task = make_task("reviews", settings)
    train = load("reviews", settings, root="", split="train")

Without a validation file, a part of the training file is held out by a hash of the texts.
"""

import dataclasses
import pathlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from annotated_types import Ge

from ag_jax.data import local
from ag_jax.data.records.formats import LocatedRecord, Record
from ag_jax.data.tasks import catalogue, custom_labels, custom_records, label_sets, lookalikes, readers, schemes
from ag_jax.data.tasks.schemes import Scheme
from ag_jax.data.tasks.task import (
    Choices,
    Example,
    Examples,
    FileLayout,
    LabelType,
    Task,
    Texts,
    is_held_out,
    is_labelled,
)

Kind = Literal["classification", "multilabel", "regression", "choice", "tagging", "span"]
Separator = Literal["comma", "semicolon", "tab"]
SPLITS = ("train", "validation", "test")
# Names of the columns, by kind, where the settings name none.
_TEXT = {"choice": "text", "tagging": "words", "span": "context"}
_SECOND = {"span": "question"}
_LABEL = {"tagging": "tags", "span": "answers"}
# Metrics by kind; the first one is primary.
_METRICS: dict[str, tuple[str, ...]] = {
    "classification": ("accuracy", "macro_f1", "matthews"),
    "multilabel": ("micro_f1", "macro_f1", "exact_match"),
    "regression": ("pearson", "spearman"),
    "choice": ("accuracy",),
    "tagging": ("entity_f1", "precision", "recall", "token_f1"),
    "plain": ("accuracy", "macro_f1"),  # tagging without entities
    "span": ("f1", "exact_match"),
}
_NO_ANSWER = ("has_answer_f1", "has_answer_exact_match", "no_answer_accuracy", "best_f1", "best_exact_match")
_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)


@dataclasses.dataclass(frozen=True)
class CustomTask:
    """Settings of a task: files of the user's own or, if `kind` is None, new tags (`labels`) for a catalogue task.

    kind: kind of the task; None stands for a task of the catalogue, such as conll2003.
    train: file with the training examples: .csv or .tsv with a header, .jsonl, for tagging a CoNLL file, for spans
        SQuAD's .json. Paths of files are relative to the suite's `data` folder, if there is one.
    validation: file with the validation examples; None holds some of the training examples out.
    test: file with examples that are only predicted, and scored if all have labels; None if there are none.
    text: column with the text (of spans: the context; of tagging: the list of words); None takes text, context or
        words.
    second: column with the second text of a pair, or with the question of a span or a choice; None takes question for
        spans, and otherwise means that there is none.
    label: column with the class, the list of labels, the number, the number of the right candidate, the list of tags or
        the answers; None takes label, tags or answers. Several columns of a multi-label task, separated by commas, have
        1 in the rows with the label that each is named after, and 0 in the others.
    choices: columns with the candidates of a choice; one column, if it holds a list of texts.
    id: column with a different id for each example; None numbers the rows from 0, but takes a column id of spans, if
        there is one.
    labels: names of the classes or labels, or entity types or tags; empty reads them from the training file.
    scheme: how tags mark the words of entities: bio, iob1, ioe1, ioe2, bioes or bilou; plain tags, such as parts of
        speech, mark none. None takes plain if no tag of the training file begins like B-, I-, E-, L-, S- or U-, and
        otherwise the first scheme in which the fewest of its sentences have a misplaced tag, tried in the order bio,
        iob1, ioe2, ioe1, bioes, bilou: tags of O and I- alone are iob1. The program stores what it takes, but None for
        bio.
    label_type: type of the classes in the training file, which the program fills in.
    lowest: lowest number of a regression; None reads it from the training file.
    highest: highest number of a regression; None reads it from the training file.
    answerable: whether every question of a span has an answer; None reads it from the files of training and validation.
    held_out: about one in so many training examples is for validation, if there is no validation file.
    separator: what separates the columns of a table; None: a comma in .csv, and in .tsv a tab without quotes.
    reader: import path of a function from the path of a file to its examples, each a dict from columns to values, for
        files of other forms.
    fingerprint: hash of the content of the task's files, also of a task of the catalogue, and behind a hyphen that of
        the records that `reader` returns. The program fills it in, so that no suite is resumed, and no trial inspected,
        with files that have changed since.
    """

    kind: Kind | None = None
    train: str | None = None
    validation: str | None = None
    test: str | None = None
    text: str | None = None
    second: str | None = None
    label: str | None = None
    choices: tuple[str, ...] = ()
    id: str | None = None
    labels: tuple[str, ...] = ()
    scheme: Scheme | None = None
    label_type: LabelType = "text"
    lowest: float | None = None
    highest: float | None = None
    answerable: bool | None = None
    held_out: Annotated[int, Ge(2)] = 10
    separator: Separator | None = None
    reader: str | None = None
    fingerprint: str | None = None

    def __post_init__(self):
        for name in ("choices", "labels"):
            if len(values := getattr(self, name)) == 1:  # a flag with commas comes as one text
                object.__setattr__(self, name, tuple(part.strip() for part in values[0].split(",")))
        if self.kind is None:
            self._check_catalogue()
            return
        for name in SPLITS:
            local.check(f"custom.{name}", getattr(self, name))
        if not self.train:
            raise ValueError("custom.train must be a file with training examples, got none")
        if self.validation and self.held_out != CustomTask.held_out:
            raise ValueError(
                f"custom.held_out must be left out, got {self.held_out}: with custom.validation={self.validation}, no "
                "training examples are held out"
            )
        if self.reader and self.separator:
            raise ValueError(
                f"custom.separator must be none, got {self.separator}: custom.reader={self.reader} reads the files"
            )
        if self.labels and self.kind not in ("classification", "multilabel", "tagging"):
            raise ValueError(f"custom.labels must be empty for a task of {self.kind}, got {', '.join(self.labels)}")
        if len(self.labels) == 1 and self.kind == "classification":
            raise ValueError(f"custom.labels must be at least two classes, got {self.labels[0]}")
        if len(set(self.labels)) < len(self.labels) or not all(label.strip() for label in self.labels):
            raise ValueError(f"custom.labels must be different names, got {', '.join(map(repr, self.labels))}")
        lookalikes.check(self.labels, "custom.labels")
        self._check_label_columns()
        if bool(self.choices) != (self.kind == "choice"):
            raise ValueError(
                "custom.choices must name the columns with the candidates of a task of choice, and only of such a "
                f"task, got {', '.join(self.choices) or 'none'} for one of {self.kind}"
            )
        if self.kind == "tagging" and self.second:
            raise ValueError(f"custom.second must be none for a task of tagging, got {self.second!r}")
        if self.kind != "tagging" and self.scheme:
            raise ValueError(f"custom.scheme must be none for a task of {self.kind}, got {self.scheme}")
        if self.kind != "regression" and (self.lowest is not None or self.highest is not None):
            raise ValueError(f"custom.lowest and custom.highest must be none for a task of {self.kind}")
        if self.kind != "span" and self.answerable is not None:
            raise ValueError(f"custom.answerable must be none for a task of {self.kind}")
        if self.lowest is not None and self.highest is not None and self.lowest >= self.highest:
            raise ValueError(f"custom.lowest must be below custom.highest, got {self.lowest:g} and {self.highest:g}")

    def _check_label_columns(self) -> None:
        """Raise ValueError if a multi-label task has a column twice, or columns that are not those of its labels."""
        columns = self.columns_of_label
        if len(set(columns)) < len(columns):
            raise ValueError(f"custom.label must name different columns, got {self.label}")
        if len(columns) > 1 and self.labels and set(self.labels) != set(columns):
            raise ValueError(
                f"custom.labels must be empty, or the columns {', '.join(columns)} that custom.label names, got "
                f"{', '.join(self.labels)}"
            )

    def _check_catalogue(self) -> None:
        """Raise ValueError if settings of a custom task, such as files or columns, are given without `kind`."""
        for field in dataclasses.fields(self):
            if field.name not in ("labels", "fingerprint") and (value := getattr(self, field.name)) != field.default:
                raise ValueError(
                    "custom.kind must say what kind of task the files are of (classification, multilabel, regression, "
                    f"choice, tagging or span), got none with custom.{field.name}={value}"
                )

    @property
    def column_of_text(self) -> str:
        """The name of the column with the text, with a question's context, or with a sentence's words."""
        return self.text or _TEXT.get(self.kind or "", "text")

    @property
    def column_of_second(self) -> str | None:
        """The name of the column with a pair's second text or with the question; None if there is none."""
        return self.second or _SECOND.get(self.kind or "")

    @property
    def column_of_label(self) -> str:
        """The name of the column with the label, the tags or the answers."""
        return self.label or _LABEL.get(self.kind or "", "label")

    @property
    def columns_of_label(self) -> tuple[str, ...]:
        """The name of the column with the label; of a multi-label task perhaps several, one for each label."""
        label = self.column_of_label
        return label_sets.columns_of(label) if self.kind == "multilabel" else (label,)

    def files(self, root: str | None) -> dict[str, pathlib.Path]:
        """Return {split: path} of the settings' files; relative paths begin at `root` (None: the working directory)."""
        names = {split: getattr(self, split) for split in SPLITS}
        return {
            split: pathlib.Path(root or "").expanduser() / pathlib.Path(name).expanduser()
            for split, name in names.items()
            if name
        }


def make_task(name: str, settings: CustomTask, folds: bool = False) -> Task:
    """Return the task that `settings` define: a custom task or, if their `kind` is None, the catalogue task `name`.

    The tags of a catalogue task are replaced by `settings.labels`, if there are any.

    name: name of the task.
    folds: whether the task is cross-validated, so that no examples are held out.

    Raises ValueError for an unknown name without a kind, for a custom task whose name is in the catalogue or has other
    characters than letters, digits and _, for a test file with folds, and for labels that cannot replace those of a
    task.
    """
    if settings.kind is None:
        return _of_catalogue(name, settings)
    if name in catalogue.TASKS:
        raise ValueError(f"tasks.{name}.custom.kind must be none, because {name} is in the catalogue: rename your task")
    if not _NAME.fullmatch(name):
        raise ValueError(f"expected a name of letters, digits and _ for a custom task, got {name!r}: rename it")
    if folds and settings.test:
        raise ValueError(
            f"tasks.{name}.custom.test must be none with folds, of which each is tested once: leave it out"
        )
    files = {split: getattr(settings, split) for split in SPLITS if getattr(settings, split)}
    if not folds:  # without a validation file, the training file has the examples of both splits
        files = {"train": settings.train, "validation": settings.train, **files}
    labels, scheme = settings.labels, settings.scheme or "bio"
    if settings.kind == "tagging":
        labels = tags_of(f"tasks.{name}.custom.labels", labels, scheme)
    metrics = _METRICS["plain" if scheme == "plain" else settings.kind]
    if scheme == "plain" and "O" in labels:
        metrics = (*metrics, "token_f1")  # without O it would be the accuracy
    elif scheme not in ("plain", "bio"):
        metrics = (*metrics, "strict_f1")
    answerable = settings.answerable is not False
    if settings.kind == "classification" and len(labels) == 2:
        metrics = (*metrics, "f1")
    return Task(
        name=name,
        kind=settings.kind,
        form="custom",
        metric=metrics[0],
        metrics=metrics if answerable else (*metrics, *_NO_ANSWER),
        layouts=(FileLayout("custom", files, ()),),
        labels=labels,
        scheme=scheme,
        label_type=settings.label_type,
        span=(
            0.0 if settings.lowest is None else settings.lowest,
            1.0 if settings.highest is None else settings.highest,
        ),
        answerable=answerable,
    )


def _of_catalogue(name: str, settings: CustomTask) -> Task:
    """Return the catalogue task called `name`, with its tags replaced by `settings.labels` if there are any."""
    try:
        task = catalogue.find(name)
    except ValueError as error:
        raise ValueError(f"{error}; a task of your own files needs tasks.{name}.custom.kind") from error
    if not settings.labels:
        return task
    if task.kind != "tagging":
        raise ValueError(
            f"tasks.{name}.custom.labels must be empty, because {name} is no tagging task: for other classes define a "
            "custom task with another name, and its kind"
        )
    return dataclasses.replace(task, labels=tags_of(f"tasks.{name}.custom.labels", settings.labels))


def tags_of(setting: str, labels: Sequence[str], scheme: Scheme = "bio") -> tuple[str, ...]:
    """Return the tags that labels stand for: all tags of entity types, or the labels if they are tags.

    In the scheme bio, the type PER stands for B-PER and I-PER; types are given without O.

    setting: name of the setting with the labels, for errors.
    labels: tags in any order, or entity types; none returns ().

    Raises ValueError for tags without O, or with only some of the tags of a type.
    """
    types = [schemes.type_of(label, scheme) for label in labels]
    if scheme == "plain" or not any(types):
        return schemes.all_tags(labels, scheme) if labels else ()
    complete = schemes.all_tags([*dict.fromkeys(kind for kind in types if kind and kind != "O")], scheme)
    if set(complete) != set(labels):
        unpaired = [tag for tag in complete if tag not in labels] or [tag for tag in labels if tag not in complete]
        raise ValueError(
            f"{setting} must be entity types, or O with all {scheme.upper()} tags of each type, got "
            f"{', '.join(labels)}: check {', '.join(unpaired)}"
        )
    return tuple(labels)


def resolved(name: str, settings: CustomTask, root: str | None) -> CustomTask:
    """Return the settings, filled in with what the files determine (labels, number range) and a hash of the files.

    The training file of a custom task decides the labels or the range of a regression. The files of training and
    validation decide whether the questions of spans are answerable.

    Settings that are resolved already are returned unchanged.

    root: folder that the paths of a custom task are relative to; None or "" stands for the working directory. For a
        task of the catalogue as for `readers.load`.

    Raises FileNotFoundError or ValueError if a file of a custom task cannot be read, lacks a column, has no usable
    labels, or is that of two splits.
    """
    if settings.fingerprint:
        return settings
    if settings.kind is None:
        return dataclasses.replace(settings, fingerprint=custom_records.fingerprint(_files(name, settings, root)))
    files = settings.files(root)
    paths = {split: file.resolve() for split, file in files.items()}
    # Equal texts in training and evaluation would give scores that are too high.
    for split, file in paths.items():
        if split != "train" and file in [other for name, other in paths.items() if name != split]:
            raise ValueError(
                f"tasks.{name}.custom.{split} must be a file of its own, got {files[split]}, which is another split, "
                "too: give another file, or leave it out"
            )
    located = {split: _located(name, settings, files[split], split) for split in files}
    changes = _read_labels(name, settings, located["train"], files["train"])
    if settings.kind == "span" and settings.answerable is None:
        labelled = [record for split, records in located.items() if is_labelled(split) for record in records]
        changes = {"answerable": custom_labels.are_answered(labelled, settings.column_of_label)}
    # What a reader returns may change without its file.
    outputs = located if settings.reader else {}
    return dataclasses.replace(settings, **changes, fingerprint=_fingerprint(_files(name, settings, root), outputs))


def _files(name: str, settings: CustomTask, root: str | None) -> dict[str, list[pathlib.Path]]:
    """Return {split: files} with all files of a custom task or of a catalogue task."""
    if settings.kind is None:
        return readers.find_files(_of_catalogue(name, settings), root or "")
    return {split: [file] for split, file in settings.files(root).items()}


def _fingerprint(files: Mapping[str, list[pathlib.Path]], outputs: Mapping[str, list[LocatedRecord]]) -> str:
    """Return a hash of the content of a task's files, and of the records that a custom reader returns for them.

    files: the files of each split.
    outputs: the records that a reader returns for each split; empty without a reader.
    """
    digest = custom_records.fingerprint(files)
    return f"{digest}-{custom_records.fingerprint_of_records(outputs)}" if outputs else digest


def _read_labels(
    name: str, settings: CustomTask, located: Sequence[LocatedRecord], file: pathlib.Path
) -> dict[str, Any]:
    """Return {setting: value} for the labels or the range of numbers that the training records determine.

    Labels or bounds that the settings give have precedence.
    """
    column, setting = settings.column_of_label, f"tasks.{name}.custom.label"
    if settings.kind == "classification":
        classes = settings.labels or custom_labels.classes(located, column, file, setting)
        return {"labels": classes, "label_type": custom_labels.type_of_labels(located, column)}
    if settings.kind == "multilabel":
        if len(settings.columns_of_label) > 1:
            return {"labels": settings.labels or settings.columns_of_label}
        labels = settings.labels or custom_labels.of_sets(located, column, file, setting)
        return {"labels": labels, "label_type": custom_labels.type_of_sets(located, column)}
    if settings.kind == "tagging":
        column = "tags" if _is_conll(settings, file) else column
        scheme = settings.scheme or schemes.recognised(custom_labels.tags(located, column))
        if settings.labels:
            labels = tags_of(f"{setting}s", settings.labels, scheme)
        else:
            labels = schemes.all_tags(custom_labels.entity_types(located, column, file, scheme), scheme)
        # None stands for bio in settings with labels, as in those of suites from before there were other schemes.
        return {"labels": labels, "scheme": settings.scheme if scheme == "bio" else scheme}
    if settings.kind == "regression":
        low, high = custom_labels.number_range(located, column, file, settings.lowest, settings.highest, setting)
        return {"lowest": low, "highest": high}
    return {}


def check_unchanged(name: str, settings: CustomTask, root: str | None) -> None:
    """Raise ValueError if the files of a task have changed since `resolved` stored their hash in the settings.

    root: as for `resolved`.
    """
    if not settings.fingerprint:
        return
    files = _files(name, settings, root)
    paths = settings.files(root) if settings.reader else {}
    outputs = {split: _located(name, settings, file, split) for split, file in paths.items()}
    if settings.fingerprint != _fingerprint(files, outputs):
        # The first file of each split, because a split of RACE has thousands.
        names = dict.fromkeys(str(split_files[0]) for split_files in files.values() if split_files)
        reader = f" or what {settings.reader} returns for them" if settings.reader else ""
        raise ValueError(
            f"the files of task {name} ({', '.join(names) or 'none is there'}){reader} have changed since its "
            "training: put back the earlier files, or train it again in another --workdir"
        )


def load(
    name: str, settings: CustomTask, root: str | None, split: str, *, skip_malformed: bool = False, folds: bool = False
) -> Examples:
    """Return the examples of a split of a custom task, in the order of its file.

    settings: as `resolved` returns them.
    root: folder that the paths are relative to; None or "" stands for the working directory.
    skip_malformed: leave malformed rows out and count them; otherwise they are an error.
    folds: do not hold validation examples out of the training file.

    Raises FileNotFoundError or ValueError if the file cannot be read, has malformed rows, no example or an id more than
    once, and if all or none of the training examples would be held out.
    """
    files, task = settings.files(root), make_task(name, settings, folds)
    shared = "validation" not in files and not folds and split != "test"
    file = files["train" if shared else split]
    numbered = (
        (place, record if isinstance(record, ValueError) else _with_id(record, settings, number))
        for number, (place, record) in enumerate(_located(name, settings, file, split))
    )

    def parse(record: Record, task: Task, labelled: bool) -> Sequence[Example]:
        return _examples(record, settings, task, labelled)

    groups, problems = readers.parse_records(numbered, parse, task, is_labelled(split))
    readers.check_problems(task, split, problems, skip_malformed)
    items = [example for group in groups for example in group]
    if not items:
        raise ValueError(f"{file}: all of {len(problems)} rows are malformed, the first: {problems[0]}")
    if (
        settings.kind == "multilabel"
        and not is_labelled(split)
        and all(getattr(of, "label", None) == () for of in items)
    ):
        unlabelled: Any = {"label": None}  # a column that nobody filled in
        items = [dataclasses.replace(item, **unlabelled) for item in items]
    # Predictions are matched with examples by id.
    if duplicates := [id for id, times in Counter(example.id for example in items).items() if times > 1]:
        raise ValueError(f"{file}: expected a different id for each example, got {duplicates[0]!r} more than once")
    if shared:
        # By the text, so that equal texts are in the same part, whatever the order of the rows.
        is_held = [is_held_out(item, settings.held_out, custom_records.content(item)) for item in items]
        if not 0 < sum(is_held) < len(items):
            raise ValueError(
                f"task {name}: one in {settings.held_out} of the examples of {file} is held out for validation, which "
                f"is {sum(is_held)} of {len(items)}: give a validation file, more examples, or another "
                f"tasks.{name}.custom.held_out"
            )
        items = [item for item, held in zip(items, is_held, strict=True) if held == (split == "validation")]
    return Examples(tuple(items), str(file), 0 if shared and split != "train" else len(problems))


def notes(settings: CustomTask, task: Task, splits: Mapping[str, Examples]) -> list[str]:
    """Return remarks for the fine-tuning report on a custom task's data, such as classes without training examples.

    They are about the scheme of tags, the class of F1, held-out examples, classes without training examples, questions
    that all have an answer, and texts that are also among the training examples.
    """
    remarks = []
    if task.kind == "tagging":
        is_plain = task.scheme == "plain"
        read_as = "plain, without entities, which need tags such as B-PER" if is_plain else task.scheme.upper()
        remarks.append(f"the tags are read as {read_as}: {', '.join(task.labels)}")
    if task.kind == "classification" and any(label.startswith("[") for label in task.labels):
        remarks.append("some classes look like lists: kind=multilabel reads lists of labels")
    if task.kind == "multilabel":
        remarks.append(f"the labels are {', '.join(task.labels)}")
    spellings = Counter(map(str.casefold, task.labels))
    if similar := [label for label in task.labels if spellings[label.casefold()] > 1]:
        remarks.append(f"labels that differ only in upper and lower case are different ones: {', '.join(similar)}")
    if task.kind == "classification" and "f1" in task.metrics:
        remarks.append(f"f1 is that of the class {task.labels[1]}")
    if not settings.validation and "validation" in splits:
        file = pathlib.PurePath(settings.train or "").name
        validation_count, train_count = len(splits["validation"]), len(splits["train"])
        remarks.append(
            f"validation: {validation_count:,} of {validation_count + train_count:,} examples of {file}, "
            f"about one in {settings.held_out}, held out by a hash of their texts"
        )
    if task.kind == "multilabel":
        sizes = Counter(len(getattr(example, "label", ())) for example in splits["train"])
        if count := sizes[0]:
            remarks.append(f"train: {count:,} of {len(splits['train']):,} examples have no label")
        if set(sizes) == {1}:
            remarks.append("every training example has one label, so kind=classification would fit")
    if classes := _unseen_classes(task, splits["train"]):
        remarks.append(f"no training example has the label {classes}")
    if task.kind.startswith("span") and not task.answerable and all(getattr(q, "answers", ()) for q in splits["train"]):
        remarks.append("every training question has an answer, so none teaches that there may be none")
    for split, examples in splits.items():
        if split != "train" and (count := _repeated_count(examples, splits["train"])):
            remarks.append(f"{split}: {count:,} of {len(examples):,} examples have a text of the training examples")
    return remarks


def notes_of_fold(task: Task, number: int, train: Examples, test: Examples) -> list[str]:
    """Return remarks for the fine-tuning report on the data of cross-validation fold `number` of a custom task.

    They are about classes without training examples, and texts that are also among the training examples.

    train: the examples that the model of the fold is trained on.
    test: the examples that it is tested on.
    """
    remarks = []
    if classes := _unseen_classes(task, train):
        remarks.append(f"fold {number}: no training example has the label {classes}")
    if count := _repeated_count(test, train):
        remarks.append(
            f"fold {number}: {count:,} of {len(test):,} test examples have a text that is also among its training "
            "examples"
        )
    return remarks


def _unseen_classes(task: Task, train: Examples) -> str:
    """Return the classes or labels, comma-separated, that no training example has; "" if none or of other tasks."""
    if task.kind == "multilabel":
        labels = {label for example in train for label in getattr(example, "label", ())}
    elif task.kind == "classification":
        labels = {getattr(example, "label", None) for example in train}
    else:
        return ""
    return ", ".join(label for number, label in enumerate(task.labels) if number not in labels)


def _repeated_count(examples: Examples, train: Examples) -> int:
    """Return the number of examples that have the same text as a training example."""
    train_texts = {custom_records.content(example) for example in train}
    return sum(custom_records.content(example) in train_texts for example in examples)


def _located(name: str, settings: CustomTask, file: pathlib.Path, split: str) -> list[LocatedRecord]:
    """Return (location, record) for each record of a file, after a check that no needed column is missing.

    Each column that the task needs must occur in at least one record.
    """
    source = split if getattr(settings, split) else "train"
    setting = f"tasks.{name}.custom.{source}"
    located = custom_records.read(file, settings.kind or "", settings.separator, settings.reader, setting)
    if _is_conll(settings, file):
        for column in ("text", "label", "id"):
            if getattr(settings, column):
                raise ValueError(
                    f"tasks.{name}.custom.{column} must be none for the CoNLL file {file}, whose columns have no "
                    "names: the word is in the first column and the tag in the last one"
                )
        return located
    columns: dict[str, str | tuple[str, ...]] = {"text": settings.column_of_text, "choices": settings.choices}
    if settings.column_of_second:
        columns["second"] = settings.column_of_second
    if settings.id:
        columns["id"] = settings.id
    if is_labelled(split):  # a test file may have no labels
        columns["label"] = settings.columns_of_label
    custom_records.check_columns(located, columns, file, name)
    return located


def _is_conll(settings: CustomTask, file: pathlib.Path) -> bool:
    """Return whether a file of a custom task is read as a CoNLL file."""
    return settings.kind == "tagging" and not settings.reader and custom_records.is_conll(file)


def _with_id(record: Record, settings: CustomTask, number: int) -> Record | ValueError:
    """Return a record with its id as text or, without a column of ids, `number`; a ValueError if its id is missing."""
    column = settings.id or ("id" if settings.kind == "span" and "id" in record else None)  # as SQuAD's files have
    if column is None:
        return {**record, "id": str(number)}
    if not isinstance(record.get(column), str | int) or not str(record[column]).strip():
        return ValueError(f"expected an id in the column {column!r}, got {record.get(column)!r}")
    return {**record, "id": str(record[column])}


def _examples(record: Record, settings: CustomTask, task: Task, labelled: bool) -> Sequence[Example]:
    """Return a list with the one example of a record of a custom task."""
    first, second, label = settings.column_of_text, settings.column_of_second, settings.column_of_label
    if settings.kind == "tagging":
        return custom_records.tags(record, first, label, task, labelled)
    if settings.kind == "span":
        return custom_records.question(record, (first, second or "", label), task, labelled)
    text = custom_records.text(record, first)
    second_text = custom_records.text(record, second) if second else None
    if settings.kind == "choice":
        candidates = custom_records.candidates(record, settings.choices)
        right = custom_records.candidate_of(record, label, len(candidates), labelled)
        pairs = tuple((text, f"{second_text} {candidate}" if second_text else candidate) for candidate in candidates)
        return [Choices(record["id"], pairs, None if right is None else (right,))]
    if settings.kind == "multilabel":
        labels = label_sets.of_record(record, settings.columns_of_label, task, labelled)
        return [Texts(record["id"], text, second_text, labels)]
    to_label = custom_records.class_of if settings.kind == "classification" else custom_records.number_of
    return [Texts(record["id"], text, second_text, to_label(record, label, task, labelled))]
