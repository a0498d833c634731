"""Translations of a run's test sets, and their scores: a cell of the grid for each test set.

In the run directory, `translations/TEST/translations.txt` has a translation in each line, and the facts of the result
beside it are the scores. A test set is translated again if the model, the search, the test set, or sacreBLEU's version
or seed changed.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from etils import epath

from ag_jax.data.parallel.pairs import LinesOfTest
from ag_jax.distributed import hosts, storage
from ag_jax.evaluation import translation
from ag_jax.grid import run as grid
from ag_jax.grid import store
from ag_jax.grid.cells import Cell, Result, Stage
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining import run_directory, translate
from ag_jax.pretraining.config import ExperimentConfig

TRANSLATIONS = "translations"  # folder of the cells, and name of the artifact


@dataclasses.dataclass(frozen=True)
class TestResult:
    """A run's translations of a test set, with their scores.

    lines: the translations.
    scores: the score of each metric, as JSON values (`evaluation.translation.Score`).
    """

    __test__ = False  # for pytest, which takes a class of this name for tests

    lines: Sequence[str]
    scores: Mapping[str, dict[str, Any]]


@dataclasses.dataclass(frozen=True, eq=False)
class ScoreCell(Cell):
    """A test set that a run translates and scores.

    test: name of the test set.
    lines: its lines.
    tokenize: how sacreBLEU tokenises.
    open_translator: opens the model, the same for all test sets of a run; only called if something is not known yet.
    """

    test: str
    lines: LinesOfTest
    tokenize: translation.Tokenizer
    open_translator: Callable[[], translate.Translator]

    @functools.cached_property
    def inputs(self) -> Mapping[str, str]:
        """Digests of the model with its search, of the test set, and of the signatures of the scores."""
        return {
            "model": store.digest(self.open_translator().settings()),
            "test set": store.digest(self.lines.sources, self.lines.references),
            "scores": store.digest(translation.signatures(tokenize=self.tokenize)),
        }

    def compute(self, directory: epath.Path) -> Result:
        """Translate and score the test set. Host 0 does it, with its own devices."""
        if not hosts.is_first():
            return Result()
        translator, sources = self.open_translator(), self.lines.sources
        print(f"translating {len(sources):,} lines of {self.test} with {translator.name}", file=sys.stderr, flush=True)
        lines = list(translate.translate_stream(translator, sources, f"test set {self.test}"))
        scores = translation.score(lines, self.lines.references, tokenize=self.tokenize)
        artifact = store.write_text(directory, f"{TRANSLATIONS}.txt", "".join(f"{line}\n" for line in lines))
        facts = {metric: dataclasses.asdict(score) for metric, score in scores.items()}
        return Result({"scores": facts}, {TRANSLATIONS: artifact})

    def read(self, directory: epath.Path, result: Result) -> TestResult:
        """Return the translations and scores that a result and its file hold."""
        text = store.read_text(directory, result.artifacts[TRANSLATIONS])
        return TestResult(text.split("\n")[:-1], result.facts["scores"])


def cells(config: ExperimentConfig, workdir: epath.Path, path: str = "", step: int | None = None) -> list[ScoreCell]:
    """Return the cells of a run's test sets; [] for a run that does not translate, or without test sets.

    config: config of the run, with the sections `translation` and `decoding` to use.
    workdir: directory of the run.
    path: of the run, below the directory of the experiment; "" if the run is the experiment.
    step: step of a checkpoint, whose parameters are then not averaged; by default the newest ones (`open_translator`).
    """
    if not config.translates or not config.translation.tests:
        return []
    open_translator = functools.cache(functools.partial(translate.open_translator, workdir, step, config=config))
    folder = f"{path}/{TRANSLATIONS}" if path else TRANSLATIONS
    return [
        ScoreCell(f"{folder}/{name}", name, lines, config.translation.tokenize, open_translator)
        for name, lines in pretraining_corpus.read_tests(config.translation).items()
    ]


def score_run(workdir: epath.PathLike, step: int | None = None) -> dict[str, TestResult]:
    """Return {name of a test set: translations and scores} of a run, stored in its directory or computed anew.

    The result is empty for a run that does not translate, or without test sets, if another process translates, and on
    other hosts than host 0.
    If the directory cannot be written, the files are written elsewhere, with a line that says where.

    step: see `cells`.
    """
    workdir = storage.directory(workdir)
    of_run = cells(run_directory.read_config(workdir), workdir, step=step)

    def run(place: epath.Path) -> dict[str, TestResult]:
        table = grid.run(lambda _: Stage(of_run), place)
        if table is None or not hosts.is_first():
            return {}
        return {cell.test: cell.read(place / cell.path, table[cell.name]) for cell in of_run}

    return storage.write_where_possible(run, workdir) if of_run else {}
