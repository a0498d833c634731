"""The definition of a task, and the kinds of examples, independent of file formats and tokenizers.

classification, multilabel,  `Texts`           a text or a pair with a class, a set of labels or a number
regression
choice, ranking              `Choices`         candidate pairs of texts, some of them right; ranking: always two
tagging                      `TaggedSentence`  words with a tag for each
span, span_or_none           `Question`        a question, and a context that may contain its answer; span_or_none: a
                                               classifier decides whether it does
referent                     `Referent`        a text with a pronoun, and phrases for which it may stand
"""

import dataclasses
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from ag_jax.data.tasks.schemes import Scheme

QUESTION_AND_ANSWER = 128  # the most tokens of a question with its answer (RoBERTa, section 5.3)
LabelType = Literal["text", "integer", "number", "boolean"]


@dataclasses.dataclass(frozen=True, slots=True)
class Texts:
    """An example of classification, of one or of several labels, or of regression: one text or a pair of texts.

    second: None for a single text.
    label: the index of the class, the ascending indices of all labels (multilabel), or the number; None: not known.
    group: examples with the same group are measured together: answers to a question (MultiRC), pairs (AX-g); otherwise
        empty.
    """

    id: str
    first: str
    second: str | None
    label: int | float | tuple[int, ...] | None
    group: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Choices:
    """An example of multiple choice: candidate pairs of texts, of which at least one is right.

    pairs: the candidates, each a pair of texts.
    right: indices of the right candidates; None: not known.
    names: the entity (ReCoRD) or the id of the ranked example for each candidate, where needed; otherwise empty.
    """

    id: str
    pairs: tuple[tuple[str, str], ...]
    right: tuple[int, ...] | None
    names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class TaggedSentence:
    """An example of tagging: the words of a sentence, with a tag for each.

    tags: a tag for each word, in the scheme of the task; None: not known.
    """

    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """An example of extractive question answering: a question, a context, and the answers in it.

    answers: texts, each with the index of its first character in the context; (): unanswerable; None: not known.
    """

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...] | None


@dataclasses.dataclass(frozen=True, slots=True)
class Referent:
    """An example of coreference: a text with a pronoun, and phrases to which the pronoun may refer.

    before, after: the text before and behind the pronoun.
    phrases: the phrase in question, and then others to which the pronoun may refer.
    label: 1 if the pronoun refers to the first phrase, else 0; None: not known.
    """

    id: str
    before: str
    after: str
    phrases: tuple[str, ...]
    label: int | float | None


Example = Texts | Choices | TaggedSentence | Question | Referent


@dataclasses.dataclass(frozen=True)
class FileLayout:
    """A layout of files in which a task is distributed: their names, format and columns.

    container: the reader that splits a file into records (a key of `containers.CONTAINERS`), or "tfds".
    files: the file of each split, relative to the folder. Alternatives, such as file names of two distributions, are
        separated by "|", and several files that make up the split by "+". Two splits with the same file divide it by
        `is_held_out`. With "tfds": the name of each split in TFDS.
    folders: folders below the root, of which the first that has the file is read; with "tfds": names of data sets, all
        of which are read.
    columns: from the field name that the parser reads to the name in the file, or to the column number in a file
        without a header. A tuple of names joins the fields with a space.
    options: further arguments of the container.
    sign: a file that must exist for a folder to have this layout, where the names of its files are ambiguous.
    """

    container: str
    files: Mapping[str, str]
    folders: tuple[str, ...]
    columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sign: str = ""


@dataclasses.dataclass(frozen=True)
class Task:
    """A downstream task: its files, labels and metrics, independent of any model.

    name: the task's name in the catalogue.
    kind: one of the kinds of the module's docstring.
    form: the parser of its records, a key of `readers.PARSERS`.
    metric: the primary metric, one of `metrics`; larger is better.
    metrics: names of all reported metrics, as `evaluation.metrics` returns them.
    split_metrics: the metrics of splits that have others, by split; the first one is primary there.
    layouts: file layouts; the first one found is read.
    prepared: TFDS layouts; the first one with the split is read; empty if TFDS does not have the task.
    labels: names of the classes or the tags, in the order of their indices; otherwise empty.
    scheme: of tagging, how tags mark entities.
    label_type: the type of the labels in the training data, which name a class by a number or True and False, too.
    aliases: from other spellings of a label, used by some distributions, to the label.
    span: the lowest and the highest number of a regression task.
    answerable: whether every question has an answer (SQuAD 1.1).
    threshold: how far the score of "no answer" must be above that of the best answer for a question to get none.
    pair_limit: the most tokens of the second text of a pair, while the first text is truncated to the rest of the row
        (RACE); 0: the longer text is truncated first.
    folds: number of cross-validation folds for a task without a validation split; 0: the task has such a split.
    legacy: what the released code does on this task without its paper saying so; empty if there is no such thing.
    legacy_validation: the test split by which the released code chose its epochs; empty if this cannot be reproduced
        here.
    """

    name: str
    kind: str
    form: str
    metric: str
    metrics: tuple[str, ...]
    layouts: tuple[FileLayout, ...] = dataclasses.field(hash=False)
    prepared: tuple[FileLayout, ...] = dataclasses.field(default=(), hash=False)
    labels: tuple[str, ...] = ()
    scheme: Scheme = "bio"
    label_type: LabelType = "text"
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    split_metrics: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict, hash=False)
    span: tuple[float, float] = (0.0, 1.0)
    answerable: bool = True
    threshold: float = 0.0
    pair_limit: int = 0
    folds: int = 0
    legacy: str = ""
    legacy_validation: str = ""

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits for which some layout of the task names files, whether or not these exist."""
        return tuple(dict.fromkeys(split for form in (*self.layouts, *self.prepared) for split in form.files))

    def of_split(self, split: str) -> "Task":
        """Return the task with the metrics by which a split, such as a diagnostic set, is scored."""
        if split not in self.split_metrics:
            return self
        names = self.split_metrics[split]
        return dataclasses.replace(self, metric=names[0], metrics=names)

    def names_of(self, labels: Sequence[int]) -> str:
        """Return the names of labels of a multi-label task, given by their indices, as one text."""
        return ", ".join(self.labels[label] for label in labels) or "no label"

    def label_index(self, value: Any) -> int:
        """Return the index of a label given by name, alias or index. Raises ValueError for an unknown label."""
        text = str(value).strip()
        text = self.aliases.get(text, text)
        if text in self.labels:
            return self.labels.index(text)
        if text.isdecimal() and int(text) < len(self.labels):
            return int(text)
        raise ValueError(f"unknown label {value!r}: expected {', '.join(self.labels)} or 0 to {len(self.labels) - 1}")


@dataclasses.dataclass(frozen=True)
class Examples(Sequence):
    """The examples of one split of a task as a sequence, with the files that they come from.

    items: the examples.
    source: the files that the examples come from.
    skipped: number of malformed records that were left out. If one file is divided into splits or folds, its malformed
        records are counted once, in the train part.
    """

    items: tuple[Example, ...]
    source: str
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]

    def __iter__(self) -> Iterator[Example]:
        return iter(self.items)

    def take(self, indices: Sequence[int] | slice) -> "Examples":
        """Return the examples at the given indices, in the order of the indices, or in the given slice.

        The source files and the number of malformed records that were left out stay the same.
        """
        items = self.items[indices] if isinstance(indices, slice) else tuple(self.items[index] for index in indices)
        return dataclasses.replace(self, items=items)


def is_labelled(split: str) -> bool:
    """Return whether every example of a split must have a label; False for test and diagnostic splits.

    Benchmarks withhold the labels of their test sets.
    """
    return not split.startswith(("test", "diagnostic"))


def number_of_texts(examples: Examples) -> int | None:
    """Return 1 if the examples are single texts, 2 if they are pairs; None if mixed or of other kinds of task.

    Single texts and pairs are examples of classification, of one or of several labels, or of regression.
    """
    counts = {1 if example.second is None else 2 for example in examples if isinstance(example, Texts)}
    return counts.pop() if len(counts) == 1 else None


def is_held_out(example: Example, one_in: int = 10, key: str | None = None) -> bool:
    """Return whether a hash of an example assigns it to validation, as it does for about one in `one_in` examples.

    It divides a file that training and validation share.

    one_in: of so many examples about one is for validation.
    key: the text that is hashed; None: of questions their context, so that no context is in both parts, and of all
        other examples their id.
    """
    if key is None:
        key = example.context if isinstance(example, Question) else example.id
    return zlib.crc32(key.encode()) % one_in == 0
