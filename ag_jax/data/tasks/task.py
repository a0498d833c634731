"""What a task is, and the kinds of examples; nothing here knows of files or of tokens.

classification, regression   `Texts`      a text or a pair with a class or a number
choice, ranking              `Choices`    pairs of texts of which one is right; ranking: always two
tagging                      `Words`      words with BIO tags
span                         `Question`   a question, and a text that holds its answer
"""

import dataclasses
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

KINDS = ("classification", "regression", "choice", "ranking", "tagging", "span")


@dataclasses.dataclass(frozen=True, slots=True)
class Texts:
    """One text, or a pair, with the index of its class or its number; label None: not known."""

    id: str
    first: str
    second: str | None
    label: int | float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Choices:
    """Candidates, each a pair of texts; right: indices of the right ones, None: not known.

    names: what each candidate stands for, where a metric needs it (ReCoRD's entities); otherwise empty.
    """

    id: str
    pairs: tuple[tuple[str, str], ...]
    right: tuple[int, ...] | None
    names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Words:
    """A sentence of words with a BIO tag each; tags None: not known."""

    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A question about a context; answers: texts with the character where each begins, () = unanswerable, None: not known."""

    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...] | None


Example = Texts | Choices | Words | Question


@dataclasses.dataclass(frozen=True)
class Layout:
    """One form in which the files of a task come.

    container: how a file is cut into records (a name of `containers.CONTAINERS`), or "tfds".
    files: split to the file below the folder; alternatives, such as file names of two distributions, are separated by "|".
        With "tfds" it is the name of the split there. Two splits of one file share it: see `is_held_out`.
    folders: below the root, the first that has the file counts; with "tfds" the names of the data sets, of which all count.
    columns: our name of a field to the name there, or to the number of the column in a file without header. A tuple of
        names joins these with a space.
    options: further settings of the container.
    sign: a file without which a folder is not in this form, where the names of its files alone do not tell.
    """

    container: str
    files: Mapping[str, str]
    folders: tuple[str, ...]
    columns: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sign: str = ""


@dataclasses.dataclass(frozen=True)
class Task:
    """A task, and everything about it that does not depend on the model.

    kind: one of `KINDS`.
    form: the parser of its records, a name of `readers.PARSERS`.
    labels: names of the classes or the BIO tags, in the order of their indices; otherwise empty.
    metric: the one by which it is judged, larger is better; metrics: all that are reported, as
        `evaluation.metrics.evaluate` names them.
    layouts: forms of its files, the first one found counts; prepared: as TFDS has it, the first one with the split counts;
        empty where it does not.
    aliases: other spellings of a label in some distributions.
    span: the lowest and the highest number of a regression task.
    answerable: every question has an answer (SQuAD 1.1).
    pair_limit: tokens that the second text of a pair keeps while the first one is cut to what is left of the row (RACE);
        0: the longer of the two is cut first.
    folds: of cross-validation where the task has no validation split of its own; 0: it has one.
    legacy: what released code did with this task that its paper does not say; empty: nothing. `legacy_validation` is the
        test split by which that code chose its epochs; empty if that cannot be done here.
    """

    name: str
    kind: str
    form: str
    metric: str
    metrics: tuple[str, ...]
    layouts: tuple[Layout, ...] = dataclasses.field(hash=False)
    prepared: tuple[Layout, ...] = dataclasses.field(default=(), hash=False)
    labels: tuple[str, ...] = ()
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict, hash=False)
    span: tuple[float, float] = (0.0, 1.0)
    answerable: bool = True
    pair_limit: int = 0
    folds: int = 0
    legacy: str = ""
    legacy_validation: str = ""

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"task {self.name}: kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        if self.metric not in self.metrics:
            raise ValueError(
                f"task {self.name}: metric {self.metric!r} is not among its metrics {', '.join(self.metrics)}"
            )

    @property
    def splits(self) -> tuple[str, ...]:
        """All splits that some distribution has; which of them are at hand is known when one is read."""
        return tuple(dict.fromkeys(split for form in (*self.layouts, *self.prepared) for split in form.files))

    def label_index(self, value: Any) -> int:
        """The index of a label given by its name, an alias or its index. Raises ValueError for an unknown one."""
        text = str(value).strip()
        text = self.aliases.get(text, text)
        if text in self.labels:
            return self.labels.index(text)
        if text.isdecimal() and int(text) < len(self.labels):
            return int(text)
        raise ValueError(f"unknown label {value!r}: expected {', '.join(self.labels)} or 0 to {len(self.labels) - 1}")


@dataclasses.dataclass(frozen=True)
class Examples(Sequence):
    """The examples of a split; skipped: malformed rows that were left out; source: where the examples come from.

    Parts of one file, be they splits or folds, count its malformed rows once: as those of `train`.
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
        """Some of them, in the given order."""
        chosen = self.items[indices] if isinstance(indices, slice) else tuple(self.items[index] for index in indices)
        return dataclasses.replace(self, items=chosen)


def is_labelled(split: str) -> bool:
    """Whether the examples of a split must have labels: all but those of benchmarks' test sets."""
    return not split.startswith(("test", "diagnostic"))


def is_held_out(example: Example) -> bool:
    """Whether an example of a file that is both train and validation is of the latter: one in ten, by a hash.

    The hash is of the context of a question, so that no text is in both, and of the id of any other example.
    """
    key = example.context if isinstance(example, Question) else example.id
    return zlib.crc32(key.encode()) % 10 == 0
