"""Runs whose length and milestones are in words of the text."""

import json
import shutil
import types

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax import main
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import run, run_directory, words
from ag_jax.settings import config_files
from ag_jax.training.checkpoint import steps_in
from tests.pretraining import tiny_runs
from tests.pretraining.tiny_runs import SHORT, TEXT, on_one_device, params, rows

pytestmark = pytest.mark.usefixtures("one_device")
PAIRS = {"data.format": "segment_pair_nsp", "model.token_types": 2}


def config(**changed):
    values = pretraining_config.default_config()
    values.update_from_flattened_dict({"optimizer.warmup_steps": 0, **changed})
    return pretraining_config.parse(values)


def corpus(epoch_words, rows):
    return types.SimpleNamespace(words={"train": epoch_words, "validation": 3}, train=range(rows))


@pytest.mark.parametrize(
    ("epoch_words", "rows", "batch", "duplicates"),
    [(1009, 83, 7, 1), (97, 11, 3, 1), (10_007, 13, 1, 1), (501, 89, 5, 3)],
)
def test_the_last_step_that_sees_no_more_words(epoch_words, rows, batch, duplicates):
    """Counted row by row, in fractions of words."""
    of_row = epoch_words * duplicates / rows
    asked = tuple(round(of_row * batch * factor) for factor in (1.5, 2.5, 7.2, 40.9))
    of_run = {"training.batch_size": batch, "training.words": asked[-1], "training.milestone_words": asked}
    pairs = {"data.duplicates": duplicates, **PAIRS} if duplicates > 1 else {}
    found = words.of_corpus(config(**of_run, **pairs), corpus(epoch_words, rows))
    seen = np.cumsum(np.full(60 * batch, of_row)).reshape(60, batch)[:, -1]  # after each step
    expected = {count: int((seen <= count + 1e-6).sum()) for count in asked}
    assert found.milestones == expected and found.steps == expected[asked[-1]] and found.epoch_rows == rows


def test_whole_epochs_are_exact():
    """Ten epochs whose rows fill the last batch are seen whole, however the numbers round."""
    for epoch_words, count, batch in ((9_999_991, 70_000, 64 * 5), (1_000_003, 7_000, 7), (33, 7, 5)):
        training = {"training.batch_size": batch, "training.words": 10 * epoch_words}
        assert words.of_corpus(config(**training), corpus(epoch_words, count)).steps == 10 * count // batch


def test_a_batch_size_that_changes():
    training = {"training.words": 1000, "training.milestone_words": (35, 70, 190), "training.batch_size": 6}
    sizes = {"training.earlier_batch_sizes": (1, 2), "training.earlier_batch_sizes_until": (3, 5)}
    found = words.of_corpus(config(**training, **sizes), corpus(100, 10))
    # Ten words a row: the steps have seen 10, 20, 30, 50, 70, 130, 190, ... words.
    assert found.milestones == {35: 3, 70: 5, 190: 7} and found.steps == 5 + (1000 - 70) // 60


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"words": 500}, "training.words=500 .* 840"),
        ({"milestone_words": (500, 900)}, "has 500, .* 840"),
        ({"milestone_words": (900, 1000)}, "has 900 and 1,000, .* step 2"),
        ({"milestone_words": (900, 9000)}, "has 9,000, .* 9 steps .* 7,560 .* 10"),
        ({"max_epochs": 7.5}, "training.steps=9 .* 7,560 .*training.max_epochs=7.5 .* 1,000 .* 8$"),
    ],
)
def test_words_that_a_run_cannot_follow(changed, named):
    given = {f"training.{name}": value for name, value in changed.items()}
    settings = config(**{"training.steps": 9, "training.batch_size": 84, **given})
    with pytest.raises(ValueError, match=named):
        words.of_corpus(settings, corpus(1000, 100))


def test_epochs_are_counted_in_words_of_the_text():
    """Which rows repeat `data.duplicates` times; not of pairs or weighted sources, whose words are not known."""
    assert words.of_corpus(config(**{"training.max_epochs": 1.0, "training.steps": 1}), corpus(840, 84)).steps == 1
    run_of = {"training.batch_size": 10, "training.max_epochs": 6.0, "data.duplicates": 3, **PAIRS}
    # A step sees a tenth of 3 * 100 words.
    assert words.of_corpus(config(**run_of, **{"training.steps": 20}), corpus(100, 100)).steps == 20
    with pytest.raises(ValueError, match=r"=21 see 630 .*training.max_epochs=6 .* 100 .* 20$"):
        words.of_corpus(config(**run_of, **{"training.steps": 21}), corpus(100, 100))
    with pytest.raises(ValueError, match="pairs"):
        words.of_corpus(config(**run_of), types.SimpleNamespace(words={}, train=range(100)))


MILESTONES = (80, 150, 270)
OF_RUN = {"training.words": MILESTONES[-1], "training.milestone_words": MILESTONES, "training.milestones": ()}


def settings(text, **changed):
    return tiny_runs.settings(text, 99, **OF_RUN | changed)


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    workdir = epath.Path(tmp_path_factory.mktemp("whole") / "run")
    with on_one_device():
        run.train(settings(text), workdir)
    return workdir


def test_the_checkpoints_of_a_run(whole, text):
    found = words.read(whole)
    recorded = json.loads((whole / "corpus.json").read_text())
    assert found.epoch_words == recorded["sources"][0]["train"]["words"] < len(TEXT.split())
    assert found.epoch_rows == recorded["train rows"]
    of_step = 4 * found.epoch_words / found.epoch_rows
    assert found.milestones == {count: int(count / of_step) for count in MILESTONES}
    assert found.steps == found.milestones[MILESTONES[-1]] == run_directory.read_config(whole).training.steps == SHORT
    assert steps_in(whole / "checkpoints") == sorted(found.milestones.values())
    assert run_directory.read_summary(whole)["steps"] == found.steps
    assert run.train(settings(text), whole) == run_directory.read_summary(whole)  # finished: not trained again


def test_a_resumed_run_is_the_same(whole, text, tmp_path, monkeypatch):
    """Its steps are those that it began with, whatever the text would say now."""
    found, workdir = words.read(whole), epath.Path(tmp_path / "run")
    run.train(settings(text), workdir, until=found.milestones[MILESTONES[0]] + 1)
    assert words.read(workdir) == found
    monkeypatch.setattr(words, "of_corpus", None)
    run.train(settings(text), workdir)
    assert rows(workdir) == rows(whole) and steps_in(workdir / "checkpoints") == steps_in(whole / "checkpoints")
    jax.tree.map(np.testing.assert_array_equal, params(workdir, SHORT), params(whole, SHORT))


def test_the_steps_of_a_failed_attempt_are_not_those_of_the_next_run(whole, text, tmp_path):
    """An attempt that ended before its first checkpoint is replaced, here with half the batch size."""
    workdir = epath.Path(tmp_path / "run")
    shutil.copytree(whole, workdir, ignore=shutil.ignore_patterns("checkpoints", "metrics.jsonl", "result.json"))
    changed = settings(text, **{"training.batch_size": 2})
    _, found = words.resolve(changed, workdir, run_directory.is_begun)
    assert found.steps in (2 * SHORT, 2 * SHORT + 1)
    shutil.copytree(whole / "checkpoints", workdir / "checkpoints")
    assert words.resolve(changed, workdir, run_directory.is_begun)[1] == words.read(whole)


def test_the_tokenizer_of_a_failed_attempt_is_not_that_of_the_next_run(whole, text, tmp_path):
    """Another vocabulary gives other rows, and so another number of steps; the text of the attempt may differ, too."""
    workdir = epath.Path(tmp_path / "run")
    shutil.copytree(whole / "tokenizer", workdir / "tokenizer")
    for name in ("config.json", "corpus.json"):
        shutil.copy(whole / name, workdir / name)
    changed = settings(text, **{"data.tokenizer.vocabulary_size": 265})
    fresh = words.resolve(changed, epath.Path(tmp_path / "fresh"), run_directory.is_begun)[1]
    assert words.resolve(changed, workdir, run_directory.is_begun)[1] == fresh != words.read(whole)
    (workdir / "corpus.json").write_text((workdir / "corpus.json").read_text().replace(".txt", ".text"))
    assert words.resolve(changed, workdir, run_directory.is_begun)[1] == fresh


def test_an_extended_run_keeps_to_its_epochs(text, tmp_path):
    """Of the words that its record states, also if the extension is only by one step."""
    workdir = epath.Path(tmp_path)
    (workdir / "checkpoints" / "5").mkdir(parents=True)
    words.record(words.WordSteps(epoch_words=100, epoch_rows=10, steps=5, milestones={}), workdir)
    extended = {"training.words": None, "training.milestone_words": (), "training.max_epochs": 3.0}
    config = settings(text, **extended, **{"training.steps": 7})  # of four rows, with ten words each
    assert words.resolve(config, workdir, run_directory.is_begun)[0] == config
    with pytest.raises(ValueError, match=r"steps=8 see 320 .*training.max_epochs=3 .* 7$"):
        words.resolve(settings(text, **extended, **{"training.steps": 8}), workdir, run_directory.is_begun)


def test_a_damaged_record(whole, tmp_path):
    stored = json.loads((whole / words.FILE).read_text())
    for changed in ({"steps": "3"}, {"milestones": {"many": 3}}, {"milestones": {"150": "3"}}):
        (tmp_path / words.FILE).write_text(json.dumps(stored | changed))
        with pytest.raises(ValueError, match="words.json"):
            words.read(epath.Path(tmp_path))


def test_prepare_prints_the_steps(text, tmp_path, capsys):
    of_run = {**tiny_runs.TINY, "data.cache_dir": str(tmp_path), "training.words": 700}
    of_run = {name: value for name, value in of_run.items() if not isinstance(value, tuple)}
    flags = [f"--config.{name}={value}" for name, value in of_run.items()]
    command = ["ag-jax", "prepare", "--config=quickstart:arm=plain", f"--config.data.source={text}"]
    assert main.main([*command, *flags, "--config.optimizer.warmup_steps=0"]) == 0
    printed = json.loads(capsys.readouterr().out)
    found, number = printed["in words"], printed["train rows"]
    assert found["epoch_rows"] == number and found["steps"] == int(700 * number / found["epoch_words"] / 4)


@pytest.mark.parametrize(
    ("overrides", "is_error"),
    [({}, False), ({"training.steps": 9}, True), ({"training.steps": 9, "training.words": None}, False)],
)
def test_steps_of_a_flag_do_not_go_with_words(overrides, is_error):
    flags = {"optimizer.warmup_steps": 0, **overrides}
    found = config_files.load("babylm/strict_small:source=novels,scale=small", flags).settings
    if is_error:
        with pytest.raises(ValueError, match="--config.training.steps and training.words"):
            words.check_flags(found, flags)
    else:
        words.check_flags(found, flags)
