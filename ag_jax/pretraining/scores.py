"""Translations of a run's test sets, and their scores.

They are kept in the run directory: `translations/TEST.txt` has a translation in each line, and `translations/TEST.json`
the scores, and what they depend on. Lines are translated again if the model, the search or the test set changed, and
scored again if sacreBLEU's version or seed did.
"""

import dataclasses
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from etils import epath

from ag_jax.data.json_files import read_json
from ag_jax.data.parallel.pairs import LinesOfTest
from ag_jax.distributed import storage
from ag_jax.evaluation import translation
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining import run_directory, translate
from ag_jax.pretraining.config import ExperimentConfig

FOLDER = "translations"


@dataclasses.dataclass(frozen=True)
class TestResult:
    """A run's translations of a test set, with their scores.

    lines: the translations.
    scores: the score of each metric, as JSON values (`evaluation.translation.Score`).
    """

    __test__ = False  # for pytest, which takes a class of this name for tests

    lines: Sequence[str]
    scores: Mapping[str, dict[str, Any]]


def score_run(
    workdir: epath.PathLike, step: int | None = None, config: ExperimentConfig | None = None
) -> dict[str, TestResult]:
    """Return {name of a test set: translations and scores} of a run, stored in its directory or computed anew.

    Test sets are translated anew if the model or the settings changed.

    step: step of a checkpoint, whose parameters are then not averaged; by default the newest ones (`open_translator`).
    config: config of the run, with the sections `translation` and `decoding` to use; by default the stored one.

    The result is empty for a run that does not translate, or without test sets.
    """
    workdir = storage.directory(workdir)
    config = config or run_directory.read_config(workdir)
    if not config.translates or not config.translation.tests:
        return {}
    tests = pretraining_corpus.read_tests(config.translation)
    translator = translate.open_translator(workdir, step, config=config)
    settings = translator.settings()
    return {
        name: _result(workdir, name, lines, translator, settings, config.translation.tokenize)
        for name, lines in tests.items()
    }


def _result(
    workdir: epath.Path,
    name: str,
    lines: LinesOfTest,
    translator: translate.Translator,
    settings: dict[str, Any],
    tokenize: translation.Tokenizer,
) -> TestResult:
    text, facts = (workdir / FOLDER / f"{name}.{ending}" for ending in ("txt", "json"))
    depends_on = {
        **settings,
        "sources": _digest(lines.sources),
        "references": _digest(lines.references),
        "tokenize": tokenize,
    }
    stored = read_json(facts) if facts.exists() and text.exists() else {}
    # Bytes that are damaged change the digest; they are no error, because lines can be translated again.
    translations = text.read_bytes().decode(errors="replace").split("\n")[:-1] if stored else []
    is_translated = stored.get("depends_on") == depends_on and stored.get("translations") == _digest(translations)
    if is_translated and _is_scored(stored.get("scores"), tokenize):
        return TestResult(translations, stored["scores"])

    if not is_translated:
        print(f"translating {len(lines.sources):,} lines of {name} with {translator.name}", file=sys.stderr, flush=True)
        translations = list(translate.translate_stream(translator, lines.sources, f"test set {name}"))
    scores: dict[str, dict[str, Any]] = {}
    try:
        for metric, score in translation.score(translations, lines.references, tokenize=tokenize).items():
            scores[metric] = dataclasses.asdict(score)
    finally:  # so that the translations are not lost if they cannot be scored
        content = {"scores": scores, "translations": _digest(translations), "depends_on": depends_on}
        _write(workdir, name, translations, json.dumps(content, indent=2) + "\n")
    return TestResult(translations, scores)


def _write(workdir: epath.Path, name: str, lines: Sequence[str], facts: str) -> None:
    """Write the translations and scores of a test set to the run directory, or print why they cannot be written."""

    def write(place: epath.Path) -> None:
        (place / FOLDER).mkdir(parents=True, exist_ok=True)
        storage.write_whole(place / FOLDER / f"{name}.txt", "".join(f"{line}\n" for line in lines))
        storage.write_whole(place / FOLDER / f"{name}.json", facts)

    try:
        storage.write_where_possible(write, workdir)
    except OSError as error:
        print(f"the translations of {name} and their scores cannot be written: {error}", file=sys.stderr, flush=True)


def _is_scored(scores: Any, tokenize: translation.Tokenizer) -> bool:
    """Return whether stored scores have all metrics, with the sacreBLEU signatures that scoring would give them now."""
    fields = {field.name for field in dataclasses.fields(translation.Score)}
    if not isinstance(scores, dict) or not all(
        isinstance(one, dict) and one.keys() == fields for one in scores.values()
    ):
        return False
    return {metric: one["signature"] for metric, one in scores.items()} == translation.signatures(tokenize=tokenize)


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
