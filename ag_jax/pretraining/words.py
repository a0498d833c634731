"""Conversion of a run's length and milestones from words of its training text to steps.

An epoch, in which every row of the training text is read once, sees all words of the training text, `data.duplicates`
times if the rows repeat the text. So after s steps a run has seen

    rows of the first s steps * words of the training text * data.duplicates / rows of the training text

words, of which each repetition counts. Words are what white space separates, as the BabyLM challenge counts them. The
steps are stored in the run directory when the run begins (`words.json`), and a resumed run reads them from there.
"""

import bisect
import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from etils import epath

from ag_jax.data.corpus import Corpus
from ag_jax.data.json_files import check_fields, read_json, reading
from ag_jax.distributed import hosts, storage
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining.config import ExperimentConfig

FILE = "words.json"


@dataclasses.dataclass(frozen=True)
class WordSteps:
    """A run's length and milestones in steps, converted from settings in words such as `training.words`.

    epoch_words: words that an epoch sees.
    epoch_rows: rows of an epoch.
    steps: number of steps of the run.
    milestones: {words: step} of `training.milestone_words`, ascending.
    """

    epoch_words: int
    epoch_rows: int
    steps: int
    milestones: dict[int, int]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, as `words.json` stores them."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class _Pace:
    """The conversion between words and steps of a run.

    config: the config of the run.
    epoch_words, epoch_rows: as in `WordSteps`.
    """

    config: ExperimentConfig
    epoch_words: int
    epoch_rows: int

    def steps(self, words: int) -> int:
        """Return the largest number of steps in which a run sees at most `words` words."""
        rows = words * self.epoch_rows // self.epoch_words
        before = self.config.batch_sizes.before
        return bisect.bisect_right(range(rows + 2), rows, key=before) - 1  # a step has a row or more

    def words(self, step: int) -> int:
        """Return the number of words that a run sees in its first `step` steps."""
        return self.config.batch_sizes.before(step) * self.epoch_words // self.epoch_rows

    def check_epochs(self, steps: int) -> None:
        """Raise ValueError if a run of `steps` steps sees more words than `training.max_epochs` allows."""
        most, seen = self.config.training.max_epochs, self.words(steps)
        text = self.config.data.max_words or self.epoch_words // self.config.data.duplicates
        if most is not None and seen > most * text:
            raise ValueError(
                f"training.steps={steps:,} see {seen:,} words, more than training.max_epochs={most:g} times the "
                f"{text:,} words of the text: lower training.steps to at most {self.steps(int(most * text)):,}"
            )


def is_needed(config: ExperimentConfig) -> bool:
    """Return whether a config sets `training.words`, `training.max_epochs` or `training.milestone_words`.

    These settings must be converted to steps.
    """
    training = config.training
    return training.words is not None or training.max_epochs is not None or bool(training.milestone_words)


def check_flags(config: ExperimentConfig, overrides: Mapping[str, Any]) -> None:
    """Raise ValueError if a flag gives the number of steps of a run whose length is in words.

    overrides: the settings that flags changed.
    """
    check_length(
        {
            "--config.training.steps": "training.steps" in overrides,
            "training.words": config.training.words is not None,
        }
    )


def check_length(settings: Mapping[str, bool]) -> None:
    """Raise ValueError if more than one setting gives the length of a run; `settings` is {name: whether it is given}.

    settings: the settings that may give it, by their names in the message.
    """
    if len(lengths := [name for name, is_given in settings.items() if is_given]) > 1:
        raise ValueError(
            f"{' and '.join(lengths)} give the length of the runs: set only one of them, and leave out the others, or "
            "set them to none"
        )


def resolve(
    config: ExperimentConfig, workdir: epath.Path, is_begun: Callable[[epath.Path], bool]
) -> tuple[ExperimentConfig, WordSteps | None]:
    """Return (config with its length in steps, its `WordSteps`); the second is None if no setting is in words.

    The text is prepared if the run has not begun.

    is_begun: whether a directory holds a run, and not only files of an attempt that failed (`run.is_begun`).

    Raises ValueError, before anything is written, if the settings cannot be followed; see `of_corpus`. Of a run that is
    extended, `training.max_epochs` is compared with its new length.
    """
    if not is_needed(config):
        return config, None
    has_begun, stored = hosts.from_first(
        "the steps in words", lambda: (has_begun := is_begun(workdir), has_begun and (workdir / FILE).exists())
    )
    if stored:
        word_steps = read(workdir)
    else:  # the tokenizer and `corpus.json` of an attempt that failed are not those of the run
        word_steps = of_corpus(config, pretraining_corpus.prepare(config, workdir if has_begun else None))
    if stored and config.training.words is None:  # the run may be extended to more steps than it began with
        _Pace(config, word_steps.epoch_words, word_steps.epoch_rows).check_epochs(config.training.steps)
    if config.training.words is not None:
        training = dataclasses.replace(config.training, steps=word_steps.steps)
        config = dataclasses.replace(config, training=training)
    return config, word_steps


def of_corpus(config: ExperimentConfig, corpus: Corpus) -> WordSteps:
    """Return a run's length and milestones in steps, from the number of words in its training text.

    Raises ValueError if the words of the text are not known, if a milestone is before the end of the first step, at the
    step of another, or after the last step, and if the run sees more than `training.max_epochs` allows.
    """
    training = config.training
    if not corpus.words:
        raise ValueError(
            "training.words, training.max_epochs and training.milestone_words need the number of words of the text, "
            "which is known neither of pairs nor of sources with weights: leave these settings, or the weights, out"
        )
    pace = _Pace(config, corpus.words["train"] * config.data.duplicates, len(corpus.train))
    steps = training.steps if training.words is None else pace.steps(training.words)
    if not steps:
        raise ValueError(
            f"training.words={training.words:,} is less than the {pace.words(1):,} words that the first step sees: "
            "raise it, or lower training.batch_size"
        )
    pace.check_epochs(steps)
    # A milestone is saved after the last step that does not go beyond its words; each needs a step of its own.
    milestones = {words: pace.steps(words) for words in training.milestone_words}
    words_of_step: dict[int, int] = {}
    for words, step in milestones.items():
        if step == 0:
            raise ValueError(
                f"training.milestone_words has {words:,}, but the first step sees {pace.words(1):,} words: leave it "
                "out, or lower training.batch_size"
            )
        if step > steps:
            raise ValueError(
                f"training.milestone_words has {words:,}, but the run of {steps:,} steps sees {pace.words(steps):,} "
                f"words: leave it out, or raise training.steps to at least {step:,}"
            )
        if step in words_of_step:
            raise ValueError(
                f"training.milestone_words has {words_of_step[step]:,} and {words:,}, which both lie before the end of "
                f"step {step + 1:,}, of about {pace.words(1):,} words: leave one out, or lower training.batch_size"
            )
        words_of_step[step] = words
    return WordSteps(pace.epoch_words, pace.epoch_rows, steps, milestones)


def record(word_steps: WordSteps, workdir: epath.Path) -> None:
    """Store a run's length and milestones in steps as `words.json`, unless the file exists, on host 0 only."""

    def write() -> None:
        if not (workdir / FILE).exists():
            storage.write_whole(workdir / FILE, json.dumps(word_steps.to_json(), indent=1) + "\n")

    hosts.from_first("the steps in words", write)


def read(workdir: epath.Path) -> WordSteps:
    """Read a run's length and milestones in steps from its `words.json`.

    Raises FileNotFoundError if there is no such file, and ValueError if it is damaged.
    """
    path = workdir / FILE
    stored = read_json(path, fields={"epoch_words": int, "epoch_rows": int, "steps": int, "milestones": dict})
    check_fields(path, stored["milestones"], dict.fromkeys(stored["milestones"], int))
    with reading(path):
        milestones = {int(words): step for words, step in stored["milestones"].items()}
    return WordSteps(stored["epoch_words"], stored["epoch_rows"], stored["steps"], milestones)
