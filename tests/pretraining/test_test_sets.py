"""Test sets of translation: what is wrong with them is said before a training, not after it."""

import dataclasses
import pathlib

import pytest
from etils import epath

from ag_jax import config_reader
from ag_jax.data.parallel import toys
from ag_jax.pretraining import comparison, run
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import corpus as pretraining_corpus

CONFIG = pathlib.Path(__file__).parents[2] / "configs" / "translate.py"
LONGEST = "lo hundo " * 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy")
    toys.write(folder, "dictionary", {"train": 60, "test": 5})
    (folder / "empty").write_text("\n" * 5)
    (folder / "long").write_text(f"a dog\n\n{LONGEST}\na dog\na dog\n")
    return folder


@pytest.fixture
def source(folder) -> str:
    return f"{CONFIG}:source={folder}/train.source,target={folder}/train.target"


def settings(folder, source, target) -> dict:
    return {
        "translation.tests": (f"news={folder}/{source}={folder}/{target}",),
        "data.cache_dir": str(folder / "cache"),
        "data.tokenizer.vocabulary_size": 300,
        "data.sequence_length": 32,
        "model.max_length": 32,
    }


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (("nowhere", "test.target"), r"translation\.tests, source of news='.*nowhere' does not exist"),
        (("test.source", "train.target"), r"test\.source has 5 lines and .*train\.target has 60"),
        (("test.source", "empty"), "test set news: expected references to score against, but all 5 of them are empty"),
        (("long", "test.target"), r"news: line 3 has \d\d+ tokens, and the model has positions for 31: split the line"),
    ],
)
def test_test_sets_are_checked_before_training(folder, source, files, message, tmp_path):
    overrides = settings(folder, *files)
    config = pretraining_config.parse(config_reader.load(source, overrides))
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        run.train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists(), "the directory is not claimed"
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        comparison.compare(source, overrides, tmp_path / "compared")
    assert not list((tmp_path / "compared").glob("*/checkpoints"))


@pytest.mark.parametrize("line", ['config.translation.tokenize = "char"', "config.translation.tests = ()"])
def test_arms_with_different_tests_are_not_compared(folder, tmp_path, line):
    path = tmp_path / "arms.py"
    path.write_text(
        "from ag_jax.pretraining import config as pretraining_config\n\n\n"
        "def get_config(argument='arm=one'):\n"
        "    config = pretraining_config.default_config()\n"
        "    config.data.update(format='parallel', source='a', target='b')\n"
        "    config.decoder.layers, config.comparison.arms = 1, 'one,other'\n"
        "    config.translation.tests = ('news=a=b',)\n"
        f"    if argument == 'arm=other':\n        config.seed = 1\n        {line}\n"
        "    return config\n"
    )
    with pytest.raises(ValueError, match="differ in translation.tests or translation.tokenize.*: set both alike"):
        comparison.arm_configs(str(path), {})


def test_a_run_that_has_begun_is_not_held_up(folder, source, tmp_path):
    config = pretraining_config.parse(config_reader.load(source, settings(folder, "nowhere", "test.target")))
    (tmp_path / "summary.json").write_text("{}")
    run.check_tests(config, epath.Path(tmp_path))


def test_a_line_with_as_many_tokens_as_positions_is_fine(folder, source):
    """As many as `Translator` takes: one position is for the end token."""
    config = pretraining_config.parse(config_reader.load(source, settings(folder, "long", "test.target")))
    tokenizer = pretraining_corpus.pipeline.prepare_tokenizer(config.data)
    size = len(tokenizer.encode(LONGEST.strip()))
    for length, fits in ((size + 1, True), (size, False)):
        model = dataclasses.replace(config.model, max_length=length)
        changed = dataclasses.replace(config, model=model)
        if fits:
            pretraining_corpus.check_tests(changed)
        else:
            with pytest.raises(ValueError, match=f"has {size} tokens, and the model has positions for {size - 1}"):
                pretraining_corpus.check_tests(changed)


@pytest.fixture
def begun(folder, source, tmp_path):
    """The directory of a run that has begun without test sets, and its config."""
    config = pretraining_config.parse(
        config_reader.load(source, settings(folder, "test.source", "test.target") | {"translation.tests": ()})
    )
    workdir = epath.Path(tmp_path / "run")
    run.claim_workdir(config, workdir)
    pretraining_corpus.pipeline.prepare_tokenizer(config.data).save(workdir / "tokenizer")
    (workdir / "checkpoints" / "0").mkdir(parents=True)
    return workdir, config


def test_a_resumed_run_takes_other_settings_of_translation(folder, source, begun, capsys):
    """With them, the verbs that read its config translate and draw. What decides about checkpoints stays."""
    workdir, before = begun
    changed = {
        "decoding.beam_size": 3,
        "translation.average": before.training.keep_last + 2,
        "training.keep_last": before.training.keep_last + 2,
        "translation.tokenize": "char",
        "inspection.sentence": "a dog",
    }
    overrides = settings(folder, "test.source", "test.target") | changed
    stays = {"title": "another", "training.milestones": (0.5,), "data.cache_dir": str(folder / "other")}
    config = pretraining_config.parse(config_reader.load(source, overrides | stays))
    run.check_tests(config, workdir)
    run.claim_workdir(config, workdir)
    found = config_reader.flat(config_reader.to_dict(run.read_config(workdir)))
    there, here = (config_reader.flat(config_reader.to_dict(of)) for of in (before, config))
    taken = {"translation.tests", *changed}
    assert {key for key in found if found[key] != there[key]} == taken
    assert {key: found[key] for key in taken} == {key: here[key] for key in taken}
    assert "config.json has the new values of " in capsys.readouterr().err
    run.claim_workdir(config, workdir)
    assert not capsys.readouterr().err, "they are the same now"


def test_other_test_sets_of_a_resumed_run_are_checked(folder, source, begun):
    workdir, before = begun
    for files, message in (
        (("nowhere", "test.target"), "nowhere' does not exist"),
        (("long", "test.target"), r"line 3 has \d\d+ tokens, and the model has positions for 31"),
    ):
        config = pretraining_config.parse(config_reader.load(source, settings(folder, *files)))
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            run.train(config, workdir)
        assert run.read_config(workdir) == before
