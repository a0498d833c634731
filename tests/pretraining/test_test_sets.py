"""Test sets of translation: what is wrong with them is named before a training, not after it."""

import dataclasses
import pathlib

import pytest
from etils import epath

from ag_jax.data.parallel import toys
from ag_jax.pretraining import comparison, run, run_directory
from ag_jax.pretraining import corpus as pretraining_corpus
from ag_jax.settings import config_files, schema

LONGEST = "lo hundo " * 30
WRONG = [
    (("nowhere", "test.target"), r"translation\.tests, source of news='.*nowhere'"),
    (("test.source", "train.target"), r"test\.source has 5 .*train\.target has 60"),
    (("test.source", "empty"), "news: .*empty"),
    (("long", "test.target"), r"news: line 3 has \d\d+ tokens, .* 31"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    toys.write(folder, "dictionary", {"train": 60, "test": 5})
    (folder / "empty").write_text("\n" * 5)
    (folder / "long").write_text(f"a dog\n\n{LONGEST}\na dog\na dog\n")
    return folder


@pytest.fixture(scope="module")
def source(folder) -> str:
    config = pathlib.Path(__file__).parents[2] / "configs" / "translate.py"
    return f"{config}:source={folder}/train.source,target={folder}/train.target"


def settings(folder, source, target) -> dict:
    return {
        "translation.tests": (f"news={folder}/{source}={folder}/{target}",),
        "data.cache_dir": str(folder / "cache"),
        "data.tokenizer.vocabulary_size": 300,
        "data.sequence_length": 32,
        "model.max_length": 32,
    }


@pytest.fixture
def config_of(folder, source):
    """A function of the test files, and of other settings, that returns a config."""

    def made(*files, **changed):
        return config_files.load(source, settings(folder, *files) | changed).settings

    return made


@pytest.mark.parametrize(("files", "named"), WRONG)
def test_test_sets_are_checked_before_training(folder, source, config_of, files, named, tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match=named):
        run.train(config_of(*files), tmp_path / "run")
    assert not (tmp_path / "run").exists(), "the directory is not claimed"
    with pytest.raises((ValueError, FileNotFoundError), match=named):
        comparison.compare(config_files.load(source, settings(folder, *files)), tmp_path / "compared")
    assert not list((tmp_path / "compared").glob("*/checkpoints"))


def test_a_line_with_as_many_tokens_as_positions_is_fine(config_of):
    """As many as `Translator` takes: one position is for the end token."""
    config = config_of("long", "test.target")
    size = len(pretraining_corpus.pipeline.prepare_tokenizer(config.data).encode(LONGEST.strip()))

    def check(length):
        changed = dataclasses.replace(config, model=dataclasses.replace(config.model, max_length=length))
        pretraining_corpus.check_tests(changed)

    check(size + 1)
    with pytest.raises(ValueError, match=f"{size} tokens, .* {size - 1}"):
        check(size)


@pytest.fixture
def begun(config_of, tmp_path):
    """The directory of a run that has begun without test sets, and its config."""
    config = config_of("test.source", "test.target", **{"translation.tests": ()})
    workdir = epath.Path(tmp_path / "run")
    run_directory.claim(config, workdir)
    pretraining_corpus.pipeline.prepare_tokenizer(config.data).save(workdir / "tokenizer")
    (workdir / "checkpoints" / "0").mkdir(parents=True)
    return workdir, config


def test_a_resumed_run_takes_other_settings_of_translation(config_of, begun, tmp_path, capsys):
    """With them, the verbs that read its config translate and draw. What decides about checkpoints stays."""
    workdir, before = begun
    changed = {
        "decoding.beam_size": 3,
        "translation.average": before.training.keep_last + 2,
        "training.keep_last": before.training.keep_last + 2,
        "translation.tokenize": "char",
        "inspection.sentence": "a dog",
    }
    stays = {"title": "another", "training.milestones": (0.5,), "data.cache_dir": str(tmp_path / "other")}
    config = config_of("test.source", "test.target", **changed, **stays)
    run.check_tests(config, workdir)
    run_directory.claim(config, workdir)
    found, there, here = (
        schema.flat(schema.to_dict(of)) for of in (run_directory.read_config(workdir), before, config)
    )
    taken = {"translation.tests", *changed}
    assert {key for key in found if found[key] != there[key]} == taken
    assert {key: found[key] for key in taken} == {key: here[key] for key in taken}
    assert "config.json" in capsys.readouterr().err
    run_directory.claim(config, workdir)
    assert not capsys.readouterr().err, "they are the same now"


def test_only_other_test_sets_of_a_resumed_run_are_checked(config_of, begun, tmp_path):
    workdir, before = begun
    for files, named in (WRONG[0], WRONG[3]):
        with pytest.raises((ValueError, FileNotFoundError), match=named):
            run.train(config_of(*files), workdir)
        assert run_directory.read_config(workdir) == before
    (tmp_path / "checkpoints" / "5").mkdir(parents=True)
    run.check_tests(config_of("nowhere", "test.target"), epath.Path(tmp_path))
