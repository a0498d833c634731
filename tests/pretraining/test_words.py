"""Runs whose length and milestones are in words of the text."""

import dataclasses
import json
import shutil
import types

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax import main
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import run, words
from ag_jax.training.checkpoint import Checkpoints, steps_in
from ag_jax.training.metrics import CLOCK_FIELDS, read_metrics
from tests.pretraining import test_extended_runs as runs

TEXT_WORDS = 60 * 9


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
    pairs = {"data.format": "segment_pair_nsp", "data.duplicates": duplicates, "model.token_types": 2}
    found = words.of_corpus(
        config(
            **{"training.batch_size": batch, "training.words": asked[-1], "training.milestone_words": asked},
            **(pairs if duplicates > 1 else {}),
        ),
        corpus(epoch_words, rows),
    )
    seen = np.cumsum(np.full(60 * batch, of_row)).reshape(60, batch)[:, -1]  # after each step
    expected = {count: int((seen <= count + 1e-6).sum()) for count in asked}
    assert found.milestones == expected and found.steps == expected[asked[-1]] and found.epoch_rows == rows


def test_whole_epochs_are_exact():
    """Ten epochs whose rows fill the last batch are seen whole, however the numbers round."""
    for epoch_words, rows, batch in ((9_999_991, 70_000, 64 * 5), (1_000_003, 7_000, 7), (33, 7, 5)):
        training = {"training.batch_size": batch, "training.words": 10 * epoch_words}
        found = words.of_corpus(config(**training), corpus(epoch_words, rows))
        assert found.steps == 10 * rows // batch


def test_a_batch_size_that_changes():
    sizes = {"earlier_batch_sizes": (1, 2), "earlier_batch_sizes_until": (3, 5)}
    training = {"words": 1000, "milestone_words": (35, 70, 190), "batch_size": 6, **sizes}
    found = words.of_corpus(
        config(**{f"training.{name}": value for name, value in training.items()}), corpus(100, 10)
    )  # ten words a row: the steps have seen 10, 20, 30, 50, 70, 130, 190, ... words
    assert found.milestones == {35: 3, 70: 5, 190: 7} and found.steps == 5 + (1000 - 70) // 60


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"words": 500}, "training.words=500 is less than the 840 words that the first step sees"),
        ({"milestone_words": (500, 900)}, "has 500, but the first step sees 840 words"),
        ({"milestone_words": (900, 1000)}, "has 900 and 1,000, which both lie before the end of step 2"),
        ({"milestone_words": (900, 9000)}, "has 9,000, but the run of 9 steps sees 7,560 words: .* to at least 10"),
        (
            {"max_epochs": 7.5},
            "training.steps=9 see 7,560 words, more than training.max_epochs=7.5 times the 1,000 .* 8$",
        ),
    ],
)
def test_words_that_a_run_cannot_follow(changed, message):
    given = {f"training.{name}": value for name, value in changed.items()}
    settings = config(**{"training.steps": 9, "training.batch_size": 84, **given})
    with pytest.raises(ValueError, match=message):
        words.of_corpus(settings, corpus(1000, 100))
    assert words.of_corpus(config(**{"training.max_epochs": 1.0, "training.steps": 1}), corpus(840, 84)).steps == 1
    with pytest.raises(ValueError, match="is known neither of pairs nor of sources with weights"):
        words.of_corpus(settings, types.SimpleNamespace(words={}, train=range(100)))


def test_rows_that_repeat_the_text_count_for_its_epochs():
    """`max_epochs` is of the words of the text, which rows repeat `data.duplicates` times."""
    pairs = {"data.format": "segment_pair_nsp", "data.duplicates": 3, "model.token_types": 2}
    run_of = {"training.batch_size": 10, "training.max_epochs": 6.0, **pairs}  # a step sees a tenth of 3 * 100 words
    assert words.of_corpus(config(**run_of, **{"training.steps": 20}), corpus(100, 100)).steps == 20
    with pytest.raises(ValueError, match=r"=21 see 630 words, more than training.max_epochs=6 times the 100 .* 20$"):
        words.of_corpus(config(**run_of, **{"training.steps": 21}), corpus(100, 100))


def test_settings_that_contradict_one_another():
    with pytest.raises(ValueError, match="milestone_words=3,2 must be ascending"):
        config(**{"training.milestone_words": (3, 2)})
    with pytest.raises(ValueError, match="has 300, but the run ends at training.words=200"):
        config(**{"training.milestone_words": (100, 300), "training.words": 200})


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(f"The union is strong, and number {number} builds a road." for number in range(60)))
    return path


def settings(text, **changed):
    of_run = {"training.words": 700, "training.milestone_words": (150, 400, 700), "training.milestones": ()}
    return runs.settings(text, 99, **of_run | changed)


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    patch, device = pytest.MonkeyPatch(), jax.devices()[0]
    patch.setattr(jax, "devices", lambda: [device])
    workdir = epath.Path(tmp_path_factory.mktemp("whole") / "run")
    run.train(settings(text), workdir)
    patch.undo()
    return workdir


def test_the_checkpoints_of_a_run(whole, text):
    found = words.read(whole)
    recorded = json.loads((whole / "corpus.json").read_text())
    assert found.epoch_words == recorded["sources"][0]["train"]["words"] < TEXT_WORDS + 60
    assert found.epoch_rows == recorded["train rows"]
    of_step = 4 * found.epoch_words / found.epoch_rows
    assert found.milestones == {count: int(count / of_step) for count in (150, 400, 700)}
    assert found.steps == found.milestones[700] == run.read_config(whole).training.steps
    assert steps_in(whole / "checkpoints") == sorted(found.milestones.values())
    assert run.read_summary(whole)["steps"] == found.steps
    assert run.train(settings(text), whole) == run.read_summary(whole)  # finished: not trained again


@pytest.mark.exhaustive
def test_a_resumed_run_is_the_same(whole, text, tmp_path, one_device, monkeypatch):
    """Its steps are those that it began with, whatever the text would say now."""
    found, workdir = words.read(whole), epath.Path(tmp_path / "run")
    assert run.train(settings(text), workdir, pause_at=found.milestones[150] + 1) and words.read(workdir) == found
    monkeypatch.setattr(words, "of_corpus", None)
    run.train(settings(text), workdir)
    rows = [
        [{k: v for k, v in row.items() if k not in CLOCK_FIELDS} for row in read_metrics(of)] for of in (whole, workdir)
    ]
    assert rows[0] == rows[1] and steps_in(workdir / "checkpoints") == steps_in(whole / "checkpoints")
    ends = [Checkpoints(of / "checkpoints", read_only=True).restore_params(found.steps) for of in (whole, workdir)]
    jax.tree.map(np.testing.assert_array_equal, *ends)


def test_the_steps_of_a_failed_attempt_are_not_those_of_the_next_run(whole, text, tmp_path):
    """An attempt that ended before its first checkpoint is replaced, here with half the batch size."""
    workdir = epath.Path(tmp_path / "run")
    workdir.mkdir()
    for name in (words.FILE, "config.json", "corpus.json"):
        shutil.copy(whole / name, workdir / name)
    shutil.copytree(whole / "tokenizer", workdir / "tokenizer")
    changed = settings(text, **{"training.batch_size": 2})
    _, found = words.resolve(changed, workdir, run.is_begun)
    assert found.steps in range(2 * words.read(whole).steps - 1, 2 * words.read(whole).steps + 2)
    shutil.copytree(whole / "checkpoints", workdir / "checkpoints")
    assert words.resolve(changed, workdir, run.is_begun)[1] == words.read(whole)


def test_the_tokenizer_of_a_failed_attempt_is_not_that_of_the_next_run(whole, text, tmp_path):
    """Another vocabulary gives other rows, and so another number of steps; the text of the attempt may differ, too."""
    workdir = epath.Path(tmp_path / "run")
    shutil.copytree(whole / "tokenizer", workdir / "tokenizer")
    for name in ("config.json", "corpus.json"):
        shutil.copy(whole / name, workdir / name)
    changed = settings(text, **{"data.tokenizer.vocabulary_size": 265})
    fresh = words.resolve(changed, epath.Path(tmp_path / "fresh"), run.is_begun)[1]
    assert words.resolve(changed, workdir, run.is_begun)[1] == fresh != words.read(whole)
    (workdir / "corpus.json").write_text((workdir / "corpus.json").read_text().replace(".txt", ".text"))
    assert words.resolve(changed, workdir, run.is_begun)[1] == fresh


def test_another_length_is_another_run(whole, text):
    for changed in ({"training.words": 800}, {"training.milestone_words": (150, 700)}):
        with pytest.raises(ValueError, match="holds a run of another config"):
            run.train(settings(text, **changed), whole)


def test_an_extended_run_keeps_to_its_epochs(text, tmp_path):
    """Of the words that its record states, also if the extension is only by one step."""
    workdir = epath.Path(tmp_path)
    (workdir / "summary.json").write_text("{}")
    words.record(words.WordSteps(epoch_words=100, epoch_rows=10, steps=5, milestones={}), workdir)
    extended = {"training.words": None, "training.milestone_words": (), "training.max_epochs": 3.0}
    for steps, is_too_many in ((7, False), (8, True)):  # of four rows, with ten words each
        config = settings(text, **{**extended, "training.steps": steps})
        if is_too_many:
            with pytest.raises(ValueError, match=r"steps=8 see 320 words, more than training.max_epochs=3 .* most 7$"):
                words.resolve(config, workdir, run.is_begun)
        else:
            assert words.resolve(config, workdir, run.is_begun)[0] == config


def test_settings_that_cannot_be_followed_leave_no_directory(text, tmp_path):
    workdir = epath.Path(tmp_path / "run")
    with pytest.raises(ValueError, match="training.words=2 is less than"):
        run.train(settings(text, **{"training.words": 2, "training.milestone_words": ()}), workdir)
    assert not (workdir / "config.json").exists()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda stored: stored.pop("steps"), "steps"),
        (lambda stored: stored["milestones"].update({"many": 3}), "'many'"),
        (lambda stored: stored["milestones"].update({"150": "3"}), "150"),
    ],
)
def test_a_damaged_record(whole, text, tmp_path, damage, message):
    workdir = epath.Path(tmp_path / "run")
    shutil.copytree(whole, workdir)
    stored = json.loads((workdir / words.FILE).read_text())
    damage(stored)
    (workdir / words.FILE).write_text(json.dumps(stored))
    with pytest.raises(ValueError, match=rf"words.json.*{message}"):
        run.train(settings(text), workdir)


def test_prepare_prints_the_steps(text, tmp_path, capsys):
    of_run = {"data.cache_dir": str(tmp_path), "data.sequence_length": 16, "training.batch_size": 4}
    of_run |= {"training.words": 700, "optimizer.warmup_steps": 0, "data.tokenizer.vocabulary_size": 300}
    flags = [f"--config.{name}={value}" for name, value in of_run.items()]
    assert main.main(["ag-jax", "prepare", "--config=quickstart", f"--config.data.source={text}", *flags]) == 0
    printed = json.loads(capsys.readouterr().out)
    found = words.WordSteps(**printed["in words"])
    rows = printed["train rows"]
    assert found == dataclasses.replace(found, epoch_rows=rows, steps=int(700 * rows / found.epoch_words / 4))


@pytest.mark.parametrize("verb", ["train", "compare"])
def test_steps_of_a_flag_do_not_go_with_words(tmp_path, capsys, verb):
    command = [
        "ag-jax",
        verb,
        "--config=babylm/strict_small:source=novels,scale=small",
        f"--workdir={tmp_path / 'run'}",
        "--config.optimizer.warmup_steps=0",
    ]
    steps = "--config.training.steps=100"
    for more in ([], ["--print_config"]):
        assert main.main([*command, steps, *more]) == 1
        said = "--config.training.steps and training.words give the length of the runs: set only one of them"
        assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert main.main([*command, "--print_config"]) == 0 and capsys.readouterr().out
    assert main.main([*command, steps, "--config.training.words=none", "--print_config"]) == 0
    assert json.loads(capsys.readouterr().out)["training"]["steps"] == 100
