"""The text of a run: the run's own tokenizer, and `corpus.json`, a summary of the text that the run is trained on.

Both are written into the run directory when the run begins, after its `config.json`. From then on the tokenizer is
never trained again, and a change of the text is detected, because it would change which rows are held out, and the
model may already have been trained on some of them.
"""

import collections
import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any

from etils import epath

from ag_jax.data import pipeline
from ag_jax.data.config import DataConfig
from ag_jax.data.corpus import Corpus
from ag_jax.data.json_files import read_json, reading
from ag_jax.data.parallel import pairs
from ag_jax.data.parallel.pairs import LinesOfTest, PairFiles
from ag_jax.distributed import hosts, storage
from ag_jax.evaluation import lines
from ag_jax.objectives.config import TranslationConfig
from ag_jax.pretraining import origin as origins
from ag_jax.pretraining.config import ExperimentConfig, InspectionConfig

SUMMARY, TOKENIZER = "corpus.json", "tokenizer"
EXAMPLE = 32  # tokens of the held-out text that are stored as an example
NAMED = 10  # most files of a kind that a message lists


def prepare(config: ExperimentConfig, workdir: epath.Path | None) -> Corpus:
    """Return the tokenizer and tokenized text of a run, prepared or from the cache; write nothing to its directory.

    Hosts with a common cache share the work.

    workdir: the run directory; None for a run that has not begun.

    Raises ValueError, on every host, if hosts made different rows, or if the files of the text changed since the run
    began and `data.accept_changed_text` is not set.
    """
    if workdir is not None:
        hosts.from_first("the files of the text", functools.partial(check_files, config, workdir))
    return _prepare(config, workdir)


def prepare_ahead(data: DataConfig) -> Corpus:
    """Tokenize a config's text into the cache, from which runs read it later, and return the corpus.

    Processes that call this at the same time share the work.
    """
    corpus = pipeline.prepare(data)
    pipeline.source_files(data)
    return corpus


def record(config: ExperimentConfig, workdir: epath.Path, corpus: Corpus) -> None:
    """Store a new run's tokenizer and facts about its text, or check a resumed run's text against the stored facts.

    The facts are the summary `corpus.json`. A resumed run's summary is rewritten if it is missing or if the files
    changed; if the rows changed, too, the old summary is kept under `earlier`.

    Raises ValueError, on every host, if the rows changed and `data.accept_changed_text` is not set.
    """
    hosts.from_first("the summary of the text", lambda: _record(config, workdir, corpus))


def check_files(config: ExperimentConfig, workdir: epath.Path) -> None:
    """Raise ValueError if the files of a run's text have changed since it began; called before they are tokenised."""
    summary = read_summary(workdir)
    if summary is None or config.data.accept_changed_text:  # `record` says what changed
        return
    if changes := _changed_files(summary["files"], pipeline.source_files(config.data)):
        rows = f"the run was trained on {summary['train rows']:,} rows, {summary['validation rows']:,} were held out"
        _refuse_unless_accepted(config, workdir, [*changes, f"  {rows}"])


def read_tests(config: TranslationConfig) -> dict[str, LinesOfTest]:
    """Read the test sets of a translation config, {name: lines of sources and references}.

    Raises ValueError or FileNotFoundError, with the name of the test set, for files that cannot be used.
    """
    return {
        name: pairs.read_test_set(
            PairFiles(
                source,
                target,
                setting=f"translation.tests, source of {name}",
                target_setting=f"translation.tests, target of {name}",
            )
        )
        for name, (source, target) in config.test_sets.items()
    }


def check_tests(config: ExperimentConfig) -> None:
    """Raise ValueError or FileNotFoundError if the translation test sets of a config cannot be read or used.

    Called before a run begins, because they are needed after the training, and before one is resumed with others.
    """
    tests = read_tests(config.translation)
    if not tests:
        return
    tokenizer = pipeline.prepare_tokenizer(config.data)
    longest = config.model.max_length - 1  # one position is for the end token
    for name, (texts, references) in tests.items():
        try:
            lines.check("the references", references, references)
        except ValueError as error:
            raise ValueError(f"test set {name}: {error}") from error
        for number, tokens in enumerate(tokenizer.encode_batch(texts), 1):
            if len(tokens) > longest:
                raise ValueError(
                    f"test set {name}: line {number} has {len(tokens)} tokens, and the model has positions for "
                    f"{longest}: split the line, or raise model.max_length"
                )


def prepare_for_evaluation(config: ExperimentConfig, workdir: epath.Path) -> tuple[Corpus, dict[str, Any]]:
    """Return (tokenizer and tokenized text, description of the held-out text) for the evaluation of a run.

    Warns if the model may have been trained on some of the held-out text.

    The description has the source, its numbers of documents, rows and tokens, `is_the_text_of_the_run` (true, false, or
    None if unknown) and, if there is one, the warning.
    """
    corpus = _prepare(config, workdir)
    held_out = {
        "source": config.data.validation_source or config.data.source,
        "documents": corpus.documents["validation"],
        "rows": len(corpus.validation),
        "tokens": len(corpus.validation.tokens),
    }
    is_the_runs, warning = hosts.from_first(
        "the summary of the text", lambda: _compare_with_training(config, workdir, corpus)
    )
    described = ", ".join(f"{held_out[name]:,} {name}" for name in ("documents", "rows", "tokens"))
    _say(f"evaluating on the held-out text of {held_out['source']}: {described}")
    if warning:
        _say(f"WARNING: {warning}")
    return corpus, held_out | {"is_the_text_of_the_run": is_the_runs} | ({"warning": warning} if warning else {})


def read_summary(workdir: epath.Path) -> dict[str, Any] | None:
    """Read the facts about a run's text from its `corpus.json`; None for a run without this file.

    Raises ValueError if the file is damaged.
    """
    path = workdir / SUMMARY
    if not path.exists():
        return None
    with reading(path, "put back a copy, or delete it if you are sure that the text is that of the run"):
        summary = read_json(path, fields={"train rows": int, "validation rows": int})
        _by_name(summary["files"])  # only for its errors
    return summary


def example(config: ExperimentConfig, workdir: epath.Path) -> str:
    """Return the sentence whose attention is shown of a run: `inspection.sentence`, or the beginning of held-out text.

    It is the latter if the setting has its default, a sentence for State of the Union messages, and the run has another
    text.
    """
    sentence = config.inspection.sentence
    if sentence != InspectionConfig.sentence or config.data.source == "sotu":
        return sentence
    return (read_summary(workdir) or {}).get("example") or sentence


def _example(corpus: Corpus) -> str:
    """Return the beginning of the first held-out row of a text, without a word that is cut off; "" for pairs."""
    if not corpus.sources:
        return ""
    row = corpus.validation.row(0)
    text = corpus.tokenizer.decode(row[:EXAMPLE]).strip()
    return text if len(row) <= EXAMPLE else text.rpartition(" ")[0] or text


def other_texts(runs: Mapping[str, tuple[ExperimentConfig, epath.Path]]) -> list[str]:
    """Return a warning for each run that was trained on other text than the first run with the same data settings.

    This is so if the files of the text changed between the two runs.

    runs: config and directory of each run.
    """
    sentences = []
    first: dict[DataConfig, tuple[str, dict[str, Any]]] = {}
    for name, (config, workdir) in runs.items():
        if (summary := read_summary(workdir)) is None:
            continue
        # Without the settings that do not change the rows.
        of_rows = dataclasses.replace(
            config.data,
            masking=DataConfig.masking,
            cache_dir=None,
            verify_cache=False,
            accept_changed_text=False,
            expected_tokens=None,
            expected_gigabytes=None,
        )
        other, other_summary = first.setdefault(of_rows, (name, summary))
        changes = [
            f"{fact} {other_summary[fact]:,} there, {summary[fact]:,} here"
            for fact in ("train rows", "validation rows")
            if other_summary[fact] != summary[fact]
        ] + [line.strip() for line in _changed_files(other_summary["files"], summary["files"])]
        if changes:
            sentences.append(f"{name} was trained on other text than {other}: {'; '.join(changes)}")
    return sentences


def with_own_tokenizer(config: DataConfig, workdir: epath.Path) -> DataConfig:
    """Return the data settings with the tokenizer stored in a run directory; unchanged if the run has not begun.

    Raises ValueError if a run that has begun has no tokenizer.
    """
    if not _has_begun(workdir):
        return config
    if not (workdir / TOKENIZER).exists():
        raise ValueError(
            f"the run in {workdir} has lost its tokenizer: put back {workdir / TOKENIZER}, without which it is of "
            "no use"
        )
    return dataclasses.replace(config, tokenizer=dataclasses.replace(config.tokenizer, path=str(workdir / TOKENIZER)))


def _has_begun(workdir: epath.Path) -> bool:
    """Return whether a run has begun: the run directory has a `corpus.json`, metrics or checkpoints.

    These are written after the tokenizer, which is therefore complete.
    """
    return any((workdir / name).exists() for name in (SUMMARY, "metrics.jsonl", "checkpoints"))


def _prepare(config: ExperimentConfig, workdir: epath.Path | None) -> Corpus:
    # All hosts look for a tokenizer in the directory before host 0 writes that of a new run: it does so after `agree`.
    quiet, data = not hosts.is_first(), config.data
    if workdir is not None:
        data = with_own_tokenizer(data, workdir)
    corpus = pipeline.prepare(data, quiet=quiet)
    hosts.agree("their text (data.source must hold the same everywhere)", corpus.facts())
    # Pairs get the token types that the imported model was trained with.
    if workdir is not None and config.next_sentence:
        origin, _ = origins.read(workdir, config.model.width)
        corpus = dataclasses.replace(corpus, tokenizer=corpus.tokenizer.with_second_type(origin.second_type))
    return corpus


def _record(config: ExperimentConfig, workdir: epath.Path, corpus: Corpus) -> None:
    if not _has_begun(workdir):
        if (workdir / TOKENIZER).exists():  # of an attempt that ended here
            (workdir / TOKENIZER).rmtree()
        corpus.tokenizer.save(workdir / TOKENIZER)
    stored = read_summary(workdir)
    summary: dict[str, Any] = {
        "source": config.data.source,
        **corpus.facts(),
        **({"example": text} if (text := _example(corpus)) else {}),
        "files": pipeline.source_files(config.data),
        **({"sources": corpus.sources} if corpus.sources else {}),
        **({"expected tokens": config.data.expected_tokens} if config.data.expected_tokens else {}),
        **({"expected gigabytes": config.data.expected_gigabytes} if config.data.expected_gigabytes else {}),
    }
    if stored is None:
        if (workdir / "metrics.jsonl").exists():
            _say(
                f"WARNING: the run in {workdir} has lost the summary of its text: {SUMMARY} is written from the text "
                "as it is now. If the text has changed since the run began, other rows are held out now"
            )
    else:
        files, rows = _changed_files(stored["files"], summary["files"]), _changed_facts(stored, corpus)
        if not files and not rows:
            return
        summary["earlier"] = stored.pop("earlier", [])
        if rows:
            _refuse_unless_accepted(config, workdir, files + rows)
            summary["earlier"].append(stored)
    storage.write_whole(workdir / SUMMARY, json.dumps(summary, indent=1) + "\n")


def _refuse_unless_accepted(config: ExperimentConfig, workdir: epath.Path, changes: list[str]) -> None:
    message = f"the text of the run in {workdir} is not what it was when the run began:\n" + "\n".join(changes)
    if not config.data.accept_changed_text:
        raise ValueError(
            f"{message}\nPut the text back as it was, begin another run in another directory, or go on knowingly with "
            "--config.data.accept_changed_text=True"
        )
    _say(f"WARNING: {message}\ncontinuing, because data.accept_changed_text is set")


def _compare_with_training(
    config: ExperimentConfig, workdir: epath.Path, corpus: Corpus
) -> tuple[bool | None, str | None]:
    """Return (whether a run is evaluated on the corpus of its training or None if unknown, a warning or None)."""
    summary = read_summary(workdir)
    if summary is None:
        return None, f"the run has no {SUMMARY}, so nothing says whether this is the text that it was trained with"
    if changes := _changed_facts(summary, corpus):
        changes = _changed_files(summary["files"], pipeline.source_files(config.data)) + changes
        warning = (
            "this is NOT the text that the run was trained with, and the model may have been trained on what is held "
            "out here:\n"
        )
        return False, warning + "\n".join(changes)
    if summary.get("earlier"):
        return (
            True,
            "the text changed while the run was trained: the model may have been trained on some of what is held "
            "out here",
        )
    return True, None


def _changed_facts(summary: dict[str, Any], corpus: Corpus) -> list[str]:
    """Return a line for each fact about the text, such as the number of rows, that has changed since the run began.

    There are none if only the tokenizer has changed.
    """
    now = corpus.facts()
    different = [fact for fact in now if summary.get(fact) != now[fact]]
    return (
        []
        if different == ["tokenizer"]
        else [f"  {fact}: then {summary.get(fact)}, now {now[fact]}" for fact in different]
    )


def _changed_files(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return message lines on text files that were added, removed or changed; [] if contents and order are the same."""
    if _contents(then) == _contents(now):
        return []
    before, after = _by_name(then), _by_name(now)
    changed = [name for name in before if name in after and before[name] != after[name]]
    kinds = {
        "added": [name for name in after if name not in before],
        "removed": [name for name in before if name not in after],
        "changed": changed,
    }
    changes = [f"  {kind}: {_listed(names)}" for kind, names in kinds.items() if names]
    sizes = [f"{len(files):,} files of {sum(size for size, _ in files.values()):,} bytes" for files in (before, after)]
    return [*(changes or ["  the files come in another order"]), f"  then {sizes[0]}, now {sizes[1]}"]


def _contents(files: dict[str, Any]) -> dict[str, list[list[Any]]]:
    return {setting: [content for _, *content in of_setting] for setting, of_setting in files.items()}


def _by_name(files: dict[str, Any]) -> dict[str, tuple[int, str]]:
    """Return {name: (size, content hash)} of files; a name that occurs twice becomes `SETTING: NAME`."""
    count = collections.Counter(name for files_of_setting in files.values() for name, _, _ in files_of_setting)
    return {
        f"{setting}: {name}" if count[name] > 1 else name: (size, content)
        for setting, files_of_setting in files.items()
        for name, size, content in files_of_setting
    }


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _say(message: str) -> None:
    hosts.say(f"data: {message}")
