"""The text of a run: its tokenizer stays, and text that is no longer the same is noticed."""

import dataclasses
import json
import shutil

import pytest
from etils import epath

from ag_jax.data.config import DataConfig, TokenizerConfig
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.pretraining import run_directory
from ag_jax.pretraining.config import ExperimentConfig, InspectionConfig
from ag_jax.pretraining.corpus import prepare, prepare_for_evaluation, record
from tests.data.conftest import text


@pytest.fixture
def config(tmp_path) -> ExperimentConfig:
    """An experiment on a folder of eight files, with a cache of its own."""
    (tmp_path / "text").mkdir()
    for number in range(8):
        (tmp_path / "text" / f"{number}.txt").write_text(text(30 * number, 30 * number + 30))
    of_data = {"source": str(tmp_path / "text"), "cache_dir": str(tmp_path / "cache"), "sequence_length": 16}
    return ExperimentConfig(data=DataConfig(tokenizer=TokenizerConfig(vocabulary_size=300), **of_data))


@pytest.fixture
def workdir(config, tmp_path) -> epath.Path:
    """The directory of a run that has left something worth keeping."""
    workdir = epath.Path(tmp_path / "run")
    begin(config, workdir)
    (workdir / "checkpoints" / "5").mkdir(parents=True)
    return workdir


def begin(config, workdir):
    """Return the corpus that `run.train` makes before the first step."""
    run_directory.claim(config, workdir)
    corpus = prepare(config, workdir)
    record(config, workdir, corpus)
    return corpus


def with_data(config, **changes) -> ExperimentConfig:
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **changes))


def test_the_sentence_of_a_run_on_another_text_is_held_out_text(config, workdir):
    corpus, example = prepare(config, workdir), pretraining_corpus.example(config, workdir)
    ids = corpus.tokenizer.encode(example)
    assert len(ids) > 5 and corpus.validation.row(0)[1 : len(ids) + 1].tolist() == ids
    given = dataclasses.replace(config, inspection=InspectionConfig("Given."))
    assert pretraining_corpus.example(given, workdir) == "Given."
    default = InspectionConfig().sentence
    assert pretraining_corpus.example(with_data(config, source="sotu"), workdir) == default
    assert pretraining_corpus.example(config, workdir / "before") == default, "of a run that lacks it"


def change_text(config):
    """Text with other words in one file more, one less, and one changed."""
    folder = epath.Path(config.data.source)
    (folder / "8.txt").write_text("Zebras quickly jump over vexed frogs. " * 40)
    (folder / "3.txt").unlink()
    (folder / "5.txt").write_text((folder / "5.txt").read_text() + " And more.")


def saved(workdir) -> dict[str, bytes]:
    paths = [*workdir.iterdir(), *(workdir / "tokenizer").iterdir()]
    return {path.name: path.read_bytes() for path in paths if path.is_file()}


def test_a_run_goes_on_with_the_same_text_wherever_it_is(config, workdir, tmp_path, capsys):
    before = saved(workdir)
    recorded = json.loads(before["corpus.json"])
    assert recorded["files"]["source"][7][0] == "7.txt"
    first = begin(config, workdir)
    shutil.copytree(config.data.source, tmp_path / "moved")
    shutil.rmtree(config.data.cache_dir)
    moved = with_data(config, source=str(tmp_path / "moved"))
    again = prepare(moved, workdir)
    record(moved, workdir, again)
    assert again.facts() == first.facts() and saved(workdir) == before
    assert prepare_for_evaluation(moved, workdir)[1] == {
        "source": str(tmp_path / "moved"),
        **{name: recorded[f"validation {name}"] for name in ("documents", "rows", "tokens")},
        "is_the_text_of_the_run": True,
    }
    assert "WARNING" not in capsys.readouterr().err


def test_changed_text_is_an_error_before_it_is_tokenised_unless_accepted(config, workdir, capsys):
    before, own = saved(workdir), prepare(config, workdir).tokenizer.fingerprint()
    rows = json.loads(before["corpus.json"])["train rows"]
    change_text(config)
    capsys.readouterr()
    with pytest.raises(ValueError) as error:
        begin(config, workdir)
    for part in ("added: 8.txt", "removed: 3.txt", "changed: 5.txt", f"{rows:,} rows", "data.accept_changed_text"):
        assert part in str(error.value)
    assert saved(workdir) == before and "tokenising" not in capsys.readouterr().err

    corpus, evaluated_on = prepare_for_evaluation(config, workdir)
    assert corpus.tokenizer.fingerprint() == own and saved(workdir) == before
    assert "added: 8.txt" in evaluated_on["warning"] and evaluated_on["is_the_text_of_the_run"] is False
    assert "WARNING" in capsys.readouterr().err

    corpus = begin(with_data(config, accept_changed_text=True), workdir)
    assert f"train rows: then {rows}, now {len(corpus.train)}" in capsys.readouterr().err
    assert saved(workdir)["tokenizer.json"] == before["tokenizer.json"] and corpus.tokenizer.fingerprint() == own
    assert json.loads(saved(workdir)["corpus.json"])["earlier"] == [json.loads(before["corpus.json"])]
    begin(config, workdir)  # the text that was accepted is the run's from now on
    assert "changed" in prepare_for_evaluation(config, workdir)[1]["warning"]


def test_the_same_files_cut_into_other_rows_are_noticed(config, workdir):
    """As by another version of the program, or by a damaged tokenizer."""
    other = with_data(config, sequence_length=20)
    with pytest.raises(ValueError, match=r"train rows: then \d+, now \d+"):
        record(other, workdir, prepare(other, workdir))


def test_a_run_that_lost_the_summary_of_its_text_gets_one_with_a_warning(config, workdir, capsys):
    before = saved(workdir)
    (workdir / "corpus.json").unlink()
    (workdir / "metrics.jsonl").write_text("")
    evaluated_on = prepare_for_evaluation(config, workdir)[1]
    assert evaluated_on["is_the_text_of_the_run"] is None and "warning" in evaluated_on
    assert not (workdir / "corpus.json").exists(), "an evaluation may be of a run that cannot be written"
    capsys.readouterr()
    begin(config, workdir)
    assert "has lost the summary of its text" in capsys.readouterr().err
    assert saved(workdir) == before | {"metrics.jsonl": b""}


def test_an_attempt_that_did_not_begin_leaves_no_tokenizer_behind(config, workdir):
    """The tokenizer was written, but the process ended before the summary was."""
    (workdir / "corpus.json").unlink()
    (workdir / "checkpoints" / "5").rmdir()
    (workdir / "tokenizer" / "tokenizer.json").write_text("{")
    begin(config, workdir)
    assert prepare(config, workdir).tokenizer.vocabulary_size == 300


def test_runs_on_other_text_are_named(config, workdir, tmp_path):
    """A finished run is only read, so that nothing else notices that the text changed before the next one began."""
    same, other = (epath.Path(tmp_path / name) for name in ("same", "other"))
    begin(config, same)
    change_text(config)
    begin(config, other)
    accepts = with_data(config, accept_changed_text=True)
    assert pretraining_corpus.other_texts({"a": (config, workdir), "b": (config, same)}) == []
    runs = {"a": (accepts, workdir), "b": (accepts, same), "c": (accepts, other)}
    (sentence,) = pretraining_corpus.other_texts(runs)
    assert sentence.startswith("c ") and "than a: train rows" in sentence and "added: 8.txt" in sentence
    runs["c"] = with_data(config, skip_words=(3,)), other
    assert pretraining_corpus.other_texts(runs) == [], "arms may differ in their text on purpose"


def test_a_run_without_its_tokenizer_is_not_given_another_one(config, workdir):
    shutil.rmtree(workdir / "tokenizer")
    with pytest.raises(ValueError, match="tokenizer"):
        prepare(config, workdir)
