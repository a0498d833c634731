"""Toy languages, learnt by the command's own path and translated line by line; averages of checkpoints; files of
translations that are interrupted and resumed.
"""

import dataclasses
import errno
import io
import json
import os
import pathlib
import random
import signal
import types
from unittest import mock

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax.attention.adversary import split_params
from ag_jax.data.parallel import pipeline, toys
from ag_jax.models.config import DecoderConfig
from ag_jax.models.decoding_config import DecodingConfig
from ag_jax.models.seq2seq import TranslationModel
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import run, translate
from ag_jax.recipes import translation as recipes
from ag_jax.training.checkpoint import Checkpoints
from ag_jax.training.loop import Interrupted
from ag_jax.training.metrics import read_metrics
from tests import tiny
from tests import tiny_translation as small

STEPS = {"copy": 500, "reverse": 500, "dictionary": 250}
LINES = 60  # of a test set


def config_of(folder: pathlib.Path, kind: toys.Kind, **settings) -> pretraining_config.ExperimentConfig:
    """A model of 2 + 2 layers for a toy corpus in `folder`."""
    if not (folder / "test.target").exists():
        toys.write(folder, kind, {"train": 4000, "validation": 60, "test": LINES})
    config, steps = recipes.default(kind), STEPS[kind]
    recipes.transformer(config, layers=2, heads=4, width=64, feedforward=128, dropout=0.0)
    recipes.pairs(config, vocabulary=64, length=32)
    config.data.tokenizer.kind = "sentencepiece_unigram" if kind == "dictionary" else "wordpiece"
    config.data.update(source=str(folder / "train.source"), target=str(folder / "train.target"))
    validation = {f"validation_{side}": str(folder / f"validation.{side}") for side in ("source", "target")}
    config.data.update(**validation)
    config.model.max_length = 32
    config.translation.update(label_smoothing=0.0, average=3)
    config.decoding.beam_size = 2
    config.optimizer.update(learning_rate=5e-3, warmup_steps=steps // 5, beta2=0.98)
    config.training.update(steps=steps, batch_size=16, checkpoint_every=steps // 10, keep_last=4, log_every=50)
    config.training.update(evaluate_every=None, tensorboard=False, milestones=(0.2,))
    config.update_from_flattened_dict(settings)
    return pretraining_config.parse(config)


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """A function that trains on a toy corpus and returns the run's directory and the summary."""
    patch, device = pytest.MonkeyPatch(), jax.devices()[0]
    patch.setattr("jax.devices", lambda: [device])

    def trained(kind, **settings):
        folder = tmp_path_factory.mktemp(kind)
        return folder / "run", run.train(config_of(folder, kind, **settings), epath.Path(folder / "run"))

    yield trained
    patch.undo()


@pytest.fixture(scope="module")
def dictionary(train):
    """The directory of a run that learns the dictionary."""
    return train("dictionary")[0]


@pytest.fixture(scope="module")
def translator(dictionary):
    return translate.open_translator(dictionary)


@pytest.fixture(scope="module")
def lines(dictionary) -> list[str]:
    """Lines to translate: sentences, and among them lines without any word."""
    found = (dictionary.parent / "test.source").read_text().splitlines()
    return [*found[:7], "", *found[7:40], "   ", *found[40:], ""]


@pytest.fixture(scope="module")
def wanted(lines) -> list[str]:
    """Their translations, by the dictionary itself."""
    words = {key: word for of in (toys.ARTICLES, toys.NOUNS, toys.VERBS, toys.ADJECTIVES) for key, word in of.items()}

    def translated(line):
        found = line.split()
        for place, word in enumerate(found[:-1]):
            if word in toys.ADJECTIVES:
                found[place], found[place + 1] = found[place + 1], word
        return " ".join(words[word] for word in found)

    return [translated(line) for line in lines]


def check_learnt(workdir, kind, share=0.98):
    """Check that at least `share` of the test set is translated without an error."""
    source, target = ((workdir.parent / f"test.{side}").read_text().splitlines() for side in ("source", "target"))
    found = translate.open_translator(workdir)(source)
    right = sum(translations[0].text == line for translations, line in zip(found, target, strict=True))
    assert len(source) == LINES and right >= share * LINES, f"{kind}: {right} of {LINES}"


def test_a_dictionary_with_swapped_adjectives_is_learnt(translator, lines, wanted):
    """By the newest three checkpoints, averaged."""
    found = translator(lines)
    right = [translations[0].text == line for translations, line in zip(found, wanted, strict=True)]
    assert len(lines) == LINES + 3 and sum(right) >= len(lines) - 1
    for line, translations in zip(lines, found, strict=True):
        assert [one.score for one in translations] == sorted((one.score for one in translations), reverse=True)
        assert len(translations) == (2 if line.strip() else 1) and all(one.ended for one in translations)
        assert translations[0].score > -0.5 or not line.strip()
    assert [one.text for one in found[7]] == [""] and found[7][0].score == 0


@pytest.mark.exhaustive
def test_a_guided_copy_has_its_attention_where_it_was_guided(train):
    """Heads for Next and Prev in every layer, at an alpha of 10 throughout, and the copy is exact."""
    settings = {"guidance.mode": "loss", "guidance.heads": "next:1,prev:1", "guidance.schedule": "constant"}
    workdir, summary = train("copy", **settings)
    for pattern in ("next", "prev"):
        assert len(summary["validation"][f"mass/{pattern}"]) == 2
        assert min(summary["validation"][f"mass/{pattern}"]) > 0.9, pattern
    assert summary["headline"] == "nll" and summary["validation_loss"] < 0.05
    check_learnt(workdir, "copy")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("copy", {}),
        ("reverse", {}),
        ("reverse", {"model.norm_position": "pre", "decoder.tie": "none", "decoder.start": "begin"}),
        ("dictionary", {"model.fixed_attention.offsets": (-1, 1), "decoder.fixed_attention.offsets": (-1, 0)}),
        (
            "reverse",
            {"guidance.mode": "loss", "guidance.decoder_heads": "prev:1", "guidance.cross_heads": "first:1,diagonal:1"},
        ),
    ],
)
def test_other_toys_and_designs_are_learnt(train, kind, settings):
    # The last lines to be learnt are those that repeat a word, such as "ki ki". With several threads, rounding differs
    # from run to run: after 800 steps, at most three of 60 lines were wrong.
    check_learnt(train(kind, **settings, **{"training.steps": 800})[0], kind, share=0.9)


def test_a_translation_does_not_depend_on_its_neighbours(translator, lines):
    order = list(range(len(lines)))
    random.Random(0).shuffle(order)
    found = translator([lines[number] for number in order[:-5]])  # a last batch of another size, too
    whole = translator(lines)
    for number, translations in zip(order[:-5], found, strict=True):
        assert [one.text for one in translations] == [one.text for one in whole[number]]
        for one, other in zip(translations, whole[number], strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-5)


def test_an_evaluation_repeats_the_validation(dictionary, one_device):
    summary = json.loads((dictionary / "summary.json").read_text())
    assert run.evaluate(dictionary)["nll"] == pytest.approx(summary["validation_loss"], rel=1e-5)


def test_tokens_of_both_sides_are_counted(dictionary):
    config = run.open_run(dictionary).config
    corpus = pipeline.prepare(config.data)
    batches = pipeline.Batches(corpus.train, corpus.tokenizer, config.data, config.training.batch_size, config.seed)
    rows = {row["step"]: row for row in read_metrics(dictionary)}
    drawn = [batches.at(step) for step in range(50)]
    source, target = (sum((batch[name] > 0).sum() for batch in drawn) for name in ("segment_ids", "target_segment_ids"))
    assert source != target and rows[50]["tokens_seen"] == source + target


def params_at(workdir, step):
    checkpoints = Checkpoints(epath.Path(workdir) / "checkpoints", read_only=True)
    params, _ = split_params(checkpoints.restore_params(step))
    checkpoints.close()
    return params


def test_the_newest_checkpoints_are_averaged(dictionary, translator, capsys):
    """The milestone at step 50 is saved as well, but belongs to another time of the training."""
    assert translator.name.endswith("(step 200, 225, 250)")
    trees = [params_at(dictionary, step) for step in (200, 225, 250)]
    for found, *saved in zip(jax.tree.leaves(translator.params), *map(jax.tree.leaves, trees), strict=True):
        mean = np.mean([np.asarray(leaf, np.float64) for leaf in saved], axis=0)
        np.testing.assert_array_equal(found, mean.astype(np.float32))
    assert not np.array_equal(*(jax.tree.leaves(tree)[0] for tree in trees[:2]))
    one = translate.averaged(epath.Path(dictionary), [225])
    jax.tree.map(np.testing.assert_array_equal, one, trees[1])
    assert "averaging" not in capsys.readouterr().err

    alone = translate.open_translator(dictionary, step=225)
    jax.tree.map(np.testing.assert_array_equal, alone.params, trees[1])
    assert alone.name.endswith("(step 225)")


def test_fewer_checkpoints_than_wanted_are_named(dictionary, capsys):
    opened = run.open_run(dictionary)
    more = dataclasses.replace(
        opened.config,
        translation=dataclasses.replace(opened.config.translation, average=9),
        training=dataclasses.replace(opened.config.training, keep_last=9),
    )
    assert translate.open_translator(dictionary, config=more).name.endswith("(step 175, 200, 225, 250)")
    assert "averaging 4 checkpoints, since no more of translation.average=9 are saved" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("steps", "every", "count", "expected"),
    [
        ([100, 200, 300], 100, 1, [300]),
        ([100, 200, 300], 100, 2, [200, 300]),
        ([100, 200, 300], 100, 7, [100, 200, 300]),
        ([37, 200, 300, 350], 100, 3, [200, 300, 350]),  # a milestone, and a last step between two checkpoints
        ([100, 900, 1000], 100, 3, [900, 1000]),  # a milestone that is as old as no checkpoint that is kept
        ([500], 100, 3, [500]),
        ([0, 100, 200], 100, 3, [100, 200]),  # the initial parameters, saved as a milestone
    ],
)
def test_which_checkpoints_are_the_newest(steps, every, count, expected):
    assert translate._newest(steps, every, count) == expected


def test_settings_of_a_comparison_replace_those_that_are_stored(dictionary):
    stored = run.read_config(dictionary)
    config = dataclasses.replace(
        stored,
        decoding=DecodingConfig(beam_size=7),
        translation=dataclasses.replace(stored.translation, average=2),
    )
    found = translate.open_translator(dictionary, config=config)
    assert found.config.beam_size == 7 != stored.decoding.beam_size
    assert found.name.endswith("(step 225, 250)")
    assert translate.open_translator(dictionary, decoding=["beam_size=3"], config=config).config.beam_size == 3


@pytest.mark.parametrize(
    ("saved", "average", "missing"),
    [
        ([25, 100, 200, 300], 3, None),
        ([100, 150], 3, None),  # the run is too short for more
        ([25, 200, 300], 3, "averages 3 checkpoints of .*, steps 100, 200, 300, but only 2 of these are saved"),
        ([100, 300], 2, "steps 200, 300, but only 1 of these are saved: set translation.average=1, or delete"),
        ([100, 300], 1, None),
    ],
)
def test_an_average_of_fewer_checkpoints_is_not_compared(tmp_path, saved, average, missing):
    for step in saved:
        (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
    values = pretraining_config.default_config()
    values.training.update(checkpoint_every=100, keep_last=3)
    values.decoder.layers, values.translation.average = 1, average
    values.data.update(format="parallel", source="a", target="b")
    config = pretraining_config.parse(values)
    if missing is None:
        translate.check_average(config, epath.Path(tmp_path))
    else:
        with pytest.raises(ValueError, match=missing):
            translate.check_average(config, epath.Path(tmp_path))


def test_runs_and_settings_that_do_not_translate(dictionary, monkeypatch):
    with pytest.raises(ValueError, match="beam_size must be at least 1 and at most 1024, got 0"):
        translate.open_translator(dictionary, decoding=["beam_size=0"])
    for item, message in {
        "beam_sizes=3": "unknown setting 'beam_sizes'; did you mean 'beam_size'",
        "beam_size=many": "--decoding: beam_size must be a whole number, got 'many'",
        "beam_size": "--decoding is a list of NAME=VALUE, such as beam_size=1, got 'beam_size'",
    }.items():
        with pytest.raises(ValueError, match=message):
            translate.open_translator(dictionary, decoding=[item])
    changed = translate.open_translator(dictionary, decoding=["length_penalty=1", "stop=full"]).config
    assert (changed.length_penalty, changed.stop) == (1.0, "full")
    monkeypatch.setattr(run, "open_run", lambda *_: pytest.fail("the model was opened"))
    with pytest.raises(ValueError, match="unknown setting"):
        translate.open_translator(dictionary, decoding=["beam_sizes=3"])
    monkeypatch.setattr(run, "read_config", lambda *_: pretraining_config.ExperimentConfig())
    with pytest.raises(ValueError, match="is a run that pre-trains an encoder, expected one that translates"):
        translate.open_translator(dictionary)


def test_weights_of_another_decoder_are_not_a_start(dictionary):
    """Shapes may be equal where the model is not."""
    start = {"training.initial_weights": str(dictionary)}
    run.check_initial_weights(config_of(dictionary.parent, "dictionary", **start, **{"model.vocabulary_size": 64}))
    other = config_of(dictionary.parent, "dictionary", **start, **{"decoder.start": "begin"})
    with pytest.raises(ValueError, match="is a run of another encoder:\n  decoder.start: there 'zero', here 'begin'"):
        run.check_initial_weights(other)


def test_parameters_that_are_not_finite_are_named(translator):
    ruined = dataclasses.replace(translator, params=jax.tree.map(lambda leaf: leaf * np.nan, translator.params))
    with pytest.raises(ValueError, match=r"step 200, 225, 250\) gives no probabilities for the line 'the dog sees a"):
        ruined(["", "the dog sees a cat"])


def test_ids_without_a_token_are_never_written(translator):
    """With random parameters and six times as many ids as the tokenizer has tokens."""
    settings = {"layers": 1, "vocabulary_size": 6 * translator.tokenizer.vocabulary_size}
    model = TranslationModel(dataclasses.replace(translator.model.config, **settings), DecoderConfig(layers=1))
    config = dataclasses.replace(translator.config, beam_size=1, max_length="20")
    wider = dataclasses.replace(translator, model=model, params=tiny.params(model, small.alone()), config=config)
    ((found,),) = wider(["the dog sees a cat"])
    assert len(found.text) > 10


# Files of translations. Windows of 8 lines, so that the file has nine.


@pytest.fixture
def windows(monkeypatch):
    monkeypatch.setattr(translate, "WINDOW", 8)


def text_of(translations):
    return "".join(f"{line}\n" for line in translations)


@pytest.fixture(scope="module")
def recalled(translator, lines):
    """The translator, but it has its translations of these lines by heart, to be faster."""
    return Recalled(translator, dict(zip(lines, translator(lines), strict=True)), [])


@dataclasses.dataclass(frozen=True)
class Recalled:
    """A translator with known translations.

    asked: all lines that it was asked to translate.
    """

    translator: translate.Translator
    known: dict
    asked: list

    def __call__(self, lines):
        self.asked.extend(lines)
        return [self.known[line] for line in lines]

    def settings(self):
        return self.translator.settings()


@pytest.fixture(scope="module")
def whole(recalled, lines) -> str:
    """The file that an uninterrupted command writes."""
    return text_of(recalled.known[line][0].text for line in lines)


class Killed(BaseException):
    """Ends a command at once, as a signal does."""


def cut_at(lines, count):
    """The first `count` lines; then the command is killed."""
    yield from lines[:count]
    raise Killed


def kill(translator, lines, output, count=29):
    with pytest.raises(Killed):
        translate.translate_file(translator, cut_at(lines, count), output, "in.txt")


def test_a_file_and_a_stream_of_translations(translator, lines, whole, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(translate, "WINDOW", 40)
    output = tmp_path / "out.txt"
    assert translate.translate_file(translator, iter(lines), output, "in.txt") == len(lines)
    assert output.read_text() == whole and sorted(os.listdir(tmp_path)) == ["out.txt", "out.txt.progress.json"]
    assert capsys.readouterr().err.splitlines()[-2:] == ["40 lines translated", "63 lines translated"]
    assert text_of(translate.translate_stream(translator, lines, "in.txt")) == whole


def test_spaces_around_a_text_are_left_out():
    """A byte-level tokenizer would give the first word another token; the training texts have no such spaces."""
    read = []
    tokenizer = types.SimpleNamespace(
        encode=lambda text: read.append(text) or [], encode_batch=lambda texts: read.extend(texts) or [[]]
    )
    of_nothing = translate.Translator(small.model(), {}, tokenizer, DecodingConfig(), 1, "run")
    assert of_nothing([" the dog\t"])[0] == [of_nothing.beginning(" the dog\n", 5)]
    assert read == ["the dog"] * 2


def test_long_lines_are_errors_and_few_of_them_are_in_memory(monkeypatch):
    monkeypatch.setattr(translate, "LARGEST_LINE", 9)
    known = Recalled(None, {line: [translate.Translation(line[:1], 0, ended=True)] for line in ("abcd", "efg")}, [])
    source = b"abcd\nefg\nabcd\nefg\n" + b"x" * 10
    windows = translate.translate_stream(known, translate.lines_of(io.BytesIO(source), "in.txt"), "in.txt")
    assert [next(windows) for _ in range(3)] == ["a", "e", "a"]
    with pytest.raises(ValueError, match=r"in.txt, line 5: expected at most 9 bytes"):
        list(windows)


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    (tmp_path / "in.txt").write_text("the dog\n")
    with pytest.raises(FileNotFoundError, match="the folder of --output=.*new/out.txt does not exist: create it"):
        translate.translate(
            lambda: pytest.fail("the model was opened"), str(tmp_path / "in.txt"), str(tmp_path / "new" / "out.txt")
        )


def test_an_error_in_writing_is_not_blamed_on_the_input(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "in.txt").write_text("the dog\n")
    known = Recalled(
        types.SimpleNamespace(settings=dict), {"the dog": [translate.Translation("la hundo", 0, True)]}, []
    )
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        translate.translate(lambda: known, str(tmp_path / "in.txt"), str(tmp_path / "out.txt"))
    assert caught.value.filename == str(tmp_path / "out.txt")


def test_standard_output_is_utf8_in_every_locale(tmp_path, monkeypatch):
    known = Recalled(None, {"the dog": [translate.Translation("la hundo → ĉi tie", -0.5, ended=True)]}, [])
    (tmp_path / "in.txt").write_text("the dog\n")
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="latin-1"))
    translate.translate(lambda: known, str(tmp_path / "in.txt"), "-")
    assert written.getvalue().decode("utf-8") == "la hundo → ĉi tie\n"


@pytest.mark.parametrize("count", [0, 5, 8, 29, 63])
def test_a_killed_command_is_resumed(recalled, lines, whole, tmp_path, windows, count):
    """Killed while it reads the first window, a later one, or at the end; then also with half a line of output."""
    output = tmp_path / "out.txt"
    kill(recalled, lines, output, count)
    done = count // 8 * 8
    assert output.read_text() == text_of(whole.splitlines()[:done])
    stored = json.loads((tmp_path / "out.txt.progress.json").read_text())
    assert (stored["lines"], stored["size"]) == (done, len(output.read_bytes()))
    with open(output, "a") as file:
        file.write("lo hundo vid")
    recalled.asked.clear()
    assert translate.translate_file(recalled, iter(lines), output, "in.txt") == len(lines)
    assert output.read_text() == whole
    assert recalled.asked == lines[done:]


def test_a_command_that_is_killed_between_output_and_progress(recalled, lines, whole, tmp_path, windows, monkeypatch):
    output, write = tmp_path / "out.txt", translate._write_progress

    def write_or_die(path, settings, done):
        if done.lines == 24:
            raise Killed
        write(path, settings, done)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(translate, "_write_progress", write_or_die)
        translate.translate_file(recalled, iter(lines), output, "in.txt")
    assert len(output.read_text().splitlines()) == 24
    translate.translate_file(recalled, iter(lines), output, "in.txt")
    assert output.read_text() == whole


def test_what_was_begun_with_other_settings_is_not_continued(translator, recalled, lines, tmp_path, windows):
    output = tmp_path / "out.txt"
    kill(recalled, lines, output)
    others = {
        "decoding.beam_size: there 2, now 3": {"config": dataclasses.replace(translator.config, beam_size=3)},
        "parameters: there '": {"params": jax.tree.map(lambda leaf: leaf + 1, translator.params)},
        "start: there 1, now 0": {"start": 0},
    }
    before = output.read_bytes()
    for message, changed in others.items():
        other = dataclasses.replace(translator, **changed)
        with pytest.raises(ValueError, match=f"was begun with another model or other settings.*\n  {message}"):
            translate.translate_file(other, iter(lines), output, "in.txt")
    assert output.read_bytes() == before
    # Where nothing is written yet, there is nothing to continue.
    (tmp_path / "new").mkdir()
    begun = tmp_path / "new" / "out.txt"
    kill(dataclasses.replace(recalled, translator=dataclasses.replace(translator, start=0)), lines, begun, 3)
    kill(recalled, lines, begun, 8)


@pytest.mark.parametrize("section", ["model", "decoder"])
def test_models_with_the_same_parameters_may_differ(section, tmp_path, windows):
    """Then a translation is not continued, either."""
    models = {"model": small.model(activation="gelu"), "decoder": small.model(DecoderConfig(2, start="begin"))}
    tokenizer = types.SimpleNamespace(fingerprint=lambda: "tokenizer")
    one = translate.Translator(small.model(), {"table": np.arange(6)}, tokenizer, DecodingConfig(), 1, "run")
    known = Recalled(one, {"the dog": [translate.Translation("la hundo", -0.5, ended=True)]}, [])
    output, lines = tmp_path / "out.txt", ["the dog"] * 9
    kill(known, lines, output, 8)
    other = dataclasses.replace(known, translator=dataclasses.replace(one, model=models[section]))
    setting = {"model": "model.activation: there 'relu', now 'gelu'", "decoder": "decoder.start: there 'zero', now 'be"}
    with pytest.raises(ValueError, match=f"was begun with another model or other settings.*\n  {setting[section]}"):
        translate.translate_file(other, lines, output, "in.txt")
    assert translate.translate_file(known, lines, output, "in.txt") == 9


def test_another_source_or_output_is_not_continued(recalled, lines, tmp_path, windows):
    output = tmp_path / "out.txt"
    kill(recalled, lines, output)
    progress, before = tmp_path / "out.txt.progress.json", output.read_bytes()

    def refused(message, source=tuple(lines)):
        with pytest.raises(ValueError, match=message):
            translate.translate_file(recalled, iter(source), output, "in.txt")

    refused("the first 24 lines of in.txt are not those that were translated to", ["the cat", *lines[1:]])
    refused("in.txt has 20 lines, but 24 lines were translated to .*out.txt before", lines[:20])
    for changed in (before[:-1], before.replace(b"lo", b"un", 1), b"x" + before):
        output.write_bytes(changed)
        refused("out.txt is not what out.txt.progress.json says, so it was changed")
        assert output.read_bytes() == changed
    output.write_bytes(before)
    progress.unlink()
    refused("out.txt exists, and no out.txt.progress.json says what it holds: choose another --output")
    progress.write_text('{"settings": {}, "lines": 3}')
    refused("expected a JSON .* under the key 'size', got nothing")
    assert output.read_bytes() == before


def test_a_finished_translation_is_not_done_again(recalled, lines, whole, tmp_path, windows):
    (tmp_path / "in.txt").write_text(text_of(lines))
    files = str(tmp_path / "in.txt"), str(tmp_path / "out.txt")
    for _ in range(2):
        recalled.asked.clear()
        translate.translate(lambda: recalled, *files)
        assert (tmp_path / "out.txt").read_text() == whole
        assert sorted(os.listdir(tmp_path)) == ["in.txt", "out.txt", "out.txt.progress.json"]
    assert not recalled.asked
    (tmp_path / "in.txt").write_text(text_of([*lines, "the cat"]))
    with pytest.raises(ValueError, match="in.txt has more than the 63 lines"):
        translate.translate(lambda: recalled, *files)
    (tmp_path / "out.txt").write_text(f"{whole}mine\n")
    with pytest.raises(ValueError, match="out.txt is not what out.txt.progress.json says"):
        translate.translate_file(recalled, iter(lines), tmp_path / "out.txt", "in.txt")
    assert (tmp_path / "out.txt").read_text() == f"{whole}mine\n"
    (tmp_path / "out.txt").unlink()
    (tmp_path / "in.txt").write_text(text_of(lines))
    translate.translate(lambda: recalled, *files)
    assert (tmp_path / "out.txt").read_text() == whole


def test_only_one_process_writes_an_output(tmp_path):
    (tmp_path / "in.txt").write_text("the dog\n")
    files = str(tmp_path / "in.txt"), str(tmp_path / "out.txt")
    opened = []

    def second():
        with pytest.raises(ValueError, match="--output=.*out.txt is in use by process"):
            translate.translate(lambda: pytest.fail("the model was opened"), *files)
        opened.append("a model")
        return Recalled(types.SimpleNamespace(settings=dict), {"the dog": [translate.Translation("x", 0, True)]}, [])

    (tmp_path / "out.txt").write_text("mine\n")
    with pytest.raises(ValueError, match="choose another --output"):
        translate.translate(second, *files)
    (tmp_path / "out.txt").unlink()
    assert not opened
    (tmp_path / "out.txt.lock").mkdir()  # of a process that was killed
    translate.translate(second, *files)
    assert opened and not (tmp_path / "out.txt.lock").exists()


def test_a_model_that_cannot_be_opened_is_no_fault_of_the_output(tmp_path):
    (tmp_path / "in.txt").write_text("the dog\n")
    error = FileNotFoundError("runs/mine does not exist")
    with pytest.raises(FileNotFoundError, match="^runs/mine does not exist$"):
        translate.translate(mock.Mock(side_effect=error), str(tmp_path / "in.txt"), str(tmp_path / "out.txt"))


def test_a_line_that_is_too_long_is_named(translator, lines, tmp_path, windows):
    """By its number in the file; what is before its window is kept."""
    source = [*lines[:20], "the old dog sees every cat " * 6, *lines[20:]]
    output = tmp_path / "out.txt"
    with pytest.raises(ValueError, match="in.txt: line 21 has [0-9]+ tokens, and the model has positions for 31: spl"):
        translate.translate_file(translator, iter(source), output, "in.txt")
    assert len(output.read_text().splitlines()) == 16
    with pytest.raises(ValueError, match="in.txt: line 21 has"):
        translate.translate_file(translator, iter(source), output, "in.txt")
    with pytest.raises(ValueError, match="in.txt: line 21 has"):
        list(translate.translate_stream(translator, source, "in.txt"))


def test_lines_end_at_line_feeds_only():
    separators = "\x0b\x0c\x1c\x85\u2028\u2029"
    stream = io.BytesIO(f"a {separators} b\r\n\nc\rd\n\r\nlast".encode())
    assert list(translate.lines_of(stream, "in.txt")) == [f"a {separators} b", "", "c\rd", "", "last"]
    assert list(translate.lines_of(io.BytesIO(b""), "in.txt")) == []


def test_a_byte_order_mark_is_no_part_of_the_text():
    """Only at the beginning of a file, as `sides.lines` reads the files of training."""
    stream = io.BytesIO("\ufeffthe dog\n\ufeffa cat\n".encode())
    assert list(translate.lines_of(stream, "in.txt")) == ["the dog", "\ufeffa cat"]


def test_lines_that_are_not_utf8_are_named():
    found = translate.lines_of(io.BytesIO(b"one\ntw\xc3\xb6\nth\xe9ree\n"), "in.txt")
    assert [next(found), next(found)] == ["one", "twö"]
    with pytest.raises(ValueError, match="in.txt, line 3: .*UTF-8.*; convert the file"):
        next(found)


@pytest.mark.exhaustive
def test_training_that_was_stopped_ends_as_if_nothing_had_happened(dictionary, tmp_path, monkeypatch, one_device):
    iterate = pipeline.Batches.iterate

    def stopped(self, start, stop, **settings):
        for step, batch in enumerate(iterate(self, start, stop, **settings), start):
            if step == 190:
                os.kill(os.getpid(), signal.SIGTERM)
            yield batch

    config, workdir = config_of(dictionary.parent, "dictionary"), epath.Path(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(pipeline.Batches, "iterate", stopped)
        with pytest.raises(Interrupted):
            run.train(config, workdir)
    run.train(config, workdir)
    jax.tree.map(np.testing.assert_array_equal, params_at(workdir, 250), params_at(dictionary, 250))
    assert run.checkpoint_steps(workdir) == run.checkpoint_steps(dictionary), "so that the same are averaged"
