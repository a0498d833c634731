"""Toy languages, learnt by the command's own path and translated line by line; averages of checkpoints; files of
translations that are interrupted and resumed.
"""

import dataclasses
import io
import json
import os
import pathlib
import random
import types

import jax
import numpy as np
import pytest
from etils import epath

from ag_jax.attention.adversary import split_params
from ag_jax.data.parallel import toys
from ag_jax.models.config import DecoderConfig
from ag_jax.models.decoding_config import DecodingConfig
from ag_jax.models.seq2seq import TranslationModel
from ag_jax.pretraining import config as pretraining_config
from ag_jax.pretraining import initial_weights, run, run_directory, translate
from ag_jax.pretraining.translate import Translation
from ag_jax.recipes import translation as recipes
from tests import tiny
from tests import tiny_translation as small
from tests.pretraining.tiny_runs import on_one_device, params

STEPS, LINES = 400, 60  # steps of training, and lines of a test set


def config_of(folder: pathlib.Path, **settings) -> pretraining_config.ExperimentConfig:
    """A model of 1 + 1 layers for the toy corpus in `folder`. Many small steps learn sooner than fewer large ones."""
    config, steps = recipes.default("dictionary"), STEPS
    recipes.transformer(config, layers=1, heads=2, width=64, feedforward=64, dropout=0.0)
    recipes.pairs(config, vocabulary=76, length=32)
    config.data.tokenizer.kind = "sentencepiece_unigram"
    config.data.update(source=str(folder / "train.source"), target=str(folder / "train.target"))
    config.data.update(**{f"validation_{side}": str(folder / f"validation.{side}") for side in ("source", "target")})
    config.model.update(max_length=32, remat="none")
    config.translation.update(label_smoothing=0.0, average=3)
    config.decoding.beam_size = 2
    config.optimizer.update(learning_rate=4e-3, warmup_steps=steps // 5, beta2=0.98)
    config.training.update(steps=steps, batch_size=6, checkpoint_every=steps // 10, keep_last=4, log_every=50)
    config.training.update(evaluate_every=None, tensorboard=False, milestones=(0.15,))
    config.update_from_flattened_dict(settings)
    return pretraining_config.parse(config)


@pytest.fixture(scope="module")
def dictionary(tmp_path_factory):
    """The directory of a run that learns the dictionary."""
    folder = tmp_path_factory.mktemp("dictionary")
    toys.write(folder, "dictionary", {"train": 1000, "validation": 60, "test": LINES})
    with on_one_device():
        run.train(config_of(folder), folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def translator(dictionary):
    return translate.open_translator(dictionary)


@pytest.fixture(scope="module")
def lines(dictionary) -> list[str]:
    """Lines to translate: sentences, and among them lines without any word."""
    found = (dictionary.parent / "test.source").read_text().splitlines()
    return [*found[:7], "", *found[7:40], "   ", *found[40:], ""]


def test_a_dictionary_with_swapped_adjectives_is_learnt(translator, lines):
    """The model is the average of the newest three checkpoints. A translation does not depend on its neighbours."""
    words = {key: word for of in (toys.ARTICLES, toys.NOUNS, toys.VERBS, toys.ADJECTIVES) for key, word in of.items()}

    def wanted(line):
        found = line.split()
        for place, word in enumerate(found[:-1]):
            if word in toys.ADJECTIVES:
                found[place], found[place + 1] = found[place + 1], word
        return " ".join(words[word] for word in found)

    whole = translator(lines)
    right = [translations[0].text == wanted(line) for translations, line in zip(whole, lines, strict=True)]
    assert len(lines) == LINES + 3 and sum(right) >= len(lines) - 1
    for line, translations in zip(lines, whole, strict=True):
        assert [one.score for one in translations] == sorted((one.score for one in translations), reverse=True)
        assert len(translations) == (2 if line.strip() else 1) and all(one.ended for one in translations)
        assert translations[0].score > -0.5 or not line.strip()
    assert whole[7] == [Translation("", 0.0, True)]
    order = list(range(len(lines)))
    random.Random(0).shuffle(order)
    found = translator([lines[number] for number in order[:-5]])  # a last batch of another size, too
    for number, translations in zip(order[:-5], found, strict=True):
        assert [one.text for one in translations] == [one.text for one in whole[number]]
        assert [one.score for one in translations] == pytest.approx([one.score for one in whole[number]], abs=1e-5)


def test_an_evaluation_repeats_the_validation(dictionary, one_device):
    summary = run_directory.read_summary(dictionary)
    assert run.evaluate(dictionary)["nll"] == pytest.approx(summary["validation_loss"], rel=1e-5)


def with_settings(config, **changes):
    """A config with other fields of sections: `with_settings(config, translation={"average": 9})`."""
    replaced = {name: dataclasses.replace(getattr(config, name), **fields) for name, fields in changes.items()}
    return dataclasses.replace(config, **replaced)


def test_the_newest_checkpoints_are_averaged(dictionary, translator, capsys):
    """The milestone at step 60 is saved as well, but belongs to another time of the training."""
    assert translator.name.endswith("(step 320, 360, 400)")
    trees = [split_params(params(dictionary, step))[0] for step in (320, 360, 400)]
    for found, *saved in zip(jax.tree.leaves(translator.params), *map(jax.tree.leaves, trees), strict=True):
        mean = np.mean([np.asarray(leaf, np.float64) for leaf in saved], axis=0)
        np.testing.assert_array_equal(found, mean.astype(np.float32))
    assert not np.array_equal(*(jax.tree.leaves(tree)[0] for tree in trees[:2]))
    alone = translate.open_translator(dictionary, step=360)
    jax.tree.map(np.testing.assert_array_equal, alone.params, trees[1])
    assert alone.name.endswith("(step 360)") and not capsys.readouterr().err

    config = run_directory.read_config(dictionary)
    more = with_settings(config, translation={"average": 9}, training={"keep_last": 9})
    assert translate.open_translator(dictionary, config=more).name.endswith("(step 280, 320, 360, 400)")
    assert "averaging 4 checkpoints" in capsys.readouterr().err
    other = with_settings(config, translation={"average": 2}, decoding={"beam_size": 7})
    found = translate.open_translator(dictionary, decoding=["length_penalty=1", "stop=full"], config=other)
    assert (found.config.beam_size, found.config.length_penalty, found.config.stop) == (7, 1.0, "full")
    assert found.name.endswith("(step 360, 400)")


@pytest.mark.parametrize(
    ("steps", "count", "expected"),
    [
        ([100, 200, 300], 1, [300]),
        ([100, 200, 300], 2, [200, 300]),
        ([100, 200, 300], 7, [100, 200, 300]),
        ([37, 200, 300, 350], 3, [200, 300, 350]),  # a milestone, and a last step between two checkpoints
        ([100, 900, 1000], 3, [900, 1000]),  # a milestone that is as old as no checkpoint that is kept
        ([0, 100, 200], 3, [100, 200]),  # the initial parameters, saved as a milestone
    ],
)
def test_which_checkpoints_are_the_newest(steps, count, expected):
    assert translate._newest(steps, 100, count) == expected


@pytest.mark.parametrize(
    ("saved", "average", "missing"),
    [
        ([25, 100, 200, 300], 3, None),
        ([100, 150], 3, None),  # the run is too short for more
        ([25, 200, 300], 3, "steps 100, 200, 300, but only 2"),
        ([100, 300], 2, "steps 200, 300, but only 1"),
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
    try:
        translate.check_average(pretraining_config.parse(values), epath.Path(tmp_path))
    except ValueError as error:
        assert missing and missing in str(error)
    else:
        assert missing is None


@pytest.mark.parametrize(
    ("item", "named"),
    [
        ("beam_size=0", "beam_size .* 0"),
        ("beam_sizes=3", "beam_sizes.*beam_size"),
        ("beam_size=many", "beam_size .*'many'"),
        ("beam_size", "'beam_size'"),
        (None, "pre-trains an encoder"),
    ],
)
def test_runs_and_settings_that_do_not_translate(item, named, monkeypatch):
    default = pretraining_config.ExperimentConfig()
    monkeypatch.setattr(translate, "open_run", lambda *_: pytest.fail("the model was opened"))
    with pytest.raises(ValueError, match=named):
        translate.open_translator("never read", decoding=[item] if item else [], config=default)


def test_weights_of_another_decoder_are_not_a_start(dictionary):
    """Shapes may be equal where the model is not."""
    start = {"training.initial_weights": str(dictionary)}
    initial_weights.check(config_of(dictionary.parent, **start, **{"model.vocabulary_size": 76}))
    with pytest.raises(ValueError, match="decoder.start: there 'zero', here 'begin'"):
        initial_weights.check(config_of(dictionary.parent, **start, **{"decoder.start": "begin"}))


def test_parameters_that_are_not_finite_are_named(translator):
    ruined = dataclasses.replace(translator, params=jax.tree.map(lambda leaf: leaf * np.nan, translator.params))
    with pytest.raises(ValueError, match=r"step 320, 360, 400\) .*'the dog sees a cat"):
        ruined(["", "the dog sees a cat"])


def test_ids_without_a_token_are_never_written(translator):
    """With random parameters and six times as many ids as the tokenizer has tokens."""
    settings = {"layers": 1, "vocabulary_size": 6 * translator.tokenizer.vocabulary_size}
    model = TranslationModel(dataclasses.replace(translator.model.config, **settings), DecoderConfig(layers=1))
    config = dataclasses.replace(translator.config, beam_size=1, max_length="20")
    wider = dataclasses.replace(translator, model=model, params=tiny.params(model, small.alone()), config=config)
    ((found,),) = wider(["the dog sees a cat"])
    assert len(found.text) > 10


# Files of translations, by a stand-in that reverses lines, in windows of 8 lines.

SOURCE = [f"line {number} {'a' * (number % 5)}" for number in range(63)]
WHOLE = "".join(f"{line[::-1]}\n" for line in SOURCE)


@dataclasses.dataclass
class Reverser:
    """Translates by reversing; `asked` are all lines that it was asked for, up to `most`."""

    of: translate.Translator
    asked: list = dataclasses.field(default_factory=list)

    def __call__(self, lines):
        for number, line in enumerate(lines):
            if len(line) > 30:
                raise translate.LineTooLong(number, len(line), 30)
        self.asked.extend(lines)
        return [[Translation(line[::-1], -0.5, True)] for line in lines]

    def settings(self):
        return self.of.settings()

    def other(self, **changed):
        return Reverser(dataclasses.replace(self.of, **changed))


@pytest.fixture
def reverser(monkeypatch):
    monkeypatch.setattr(translate, "WINDOW", 8)
    tokenizer = types.SimpleNamespace(fingerprint=lambda: "tokenizer")
    return Reverser(translate.Translator(small.model(), {"a": np.arange(6.0)}, tokenizer, DecodingConfig(), 1, "run"))


class Killed(BaseException):
    """Ends a command at once, as a signal does."""


def kill(translator, output, count=29, source=SOURCE):
    def cut():
        yield from source[:count]
        raise Killed

    with pytest.raises(Killed):
        translate.translate_file(translator, cut(), output, "in.txt")


@pytest.mark.parametrize("count", [0, 5, 8, 29, 63])
def test_a_killed_command_is_resumed(reverser, tmp_path, count):
    """Killed while it reads the first window, a later one, or at the end; then also with half a line of output."""
    output, done = tmp_path / "out.txt", count // 8 * 8
    kill(reverser, output, count)
    assert output.read_text() == "".join(WHOLE.splitlines(keepends=True)[:done])
    stored = json.loads((tmp_path / "out.txt.progress.json").read_text())
    assert (stored["lines"], stored["size"]) == (done, len(output.read_bytes()))
    with open(output, "a") as file:
        file.write("lo hundo vid")
    reverser.asked.clear()
    assert translate.translate_file(reverser, iter(SOURCE), output, "in.txt") == len(SOURCE)
    assert output.read_text() == WHOLE and reverser.asked == SOURCE[done:]
    assert "".join(f"{one}\n" for one in translate.translate_stream(reverser, SOURCE, "in.txt")) == WHOLE


def test_a_command_that_is_killed_between_output_and_progress(reverser, tmp_path, monkeypatch):
    output, write = tmp_path / "out.txt", translate._write_progress

    def write_or_die(path, settings, done):
        if done.lines == 24:
            raise Killed
        write(path, settings, done)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(translate, "_write_progress", write_or_die)
        translate.translate_file(reverser, iter(SOURCE), output, "in.txt")
    assert len(output.read_text().splitlines()) == 24
    translate.translate_file(reverser, iter(SOURCE), output, "in.txt")
    assert output.read_text() == WHOLE


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"config": DecodingConfig(beam_size=3)}, "decoding.beam_size: there .*, now 3"),
        ({"params": {"a": np.arange(1.0, 7.0)}}, "parameters: there '"),
        ({"start": 0}, "start: there 1, now 0"),
        ({"engine": translate.Engine("other 1.0", None)}, "engine: there None, now 'other 1.0'"),
        ({"model": small.model(activation="gelu")}, "model.activation: there 'relu', now 'gelu'"),
        ({"model": small.model(DecoderConfig(2, start="begin"))}, "decoder.start: there 'zero', now 'begin'"),
    ],
)
def test_what_was_begun_with_other_settings_is_not_continued(reverser, tmp_path, changed, named):
    """Unless nothing is written yet."""
    output, other = tmp_path / "out.txt", reverser.other(**changed)
    kill(other, output, 3)
    kill(reverser, output)
    before = output.read_bytes()
    with pytest.raises(ValueError, match=f"\n  {named}"):
        translate.translate_file(other, iter(SOURCE), output, "in.txt")
    assert output.read_bytes() == before


@pytest.mark.parametrize("is_whole", [False, True])
def test_another_source_or_output_is_not_continued(reverser, tmp_path, is_whole):
    output, progress = tmp_path / "out.txt", tmp_path / "out.txt.progress.json"
    if is_whole:
        translate.translate_file(reverser, SOURCE, output, "in.txt")
    else:
        kill(reverser, output)
    before, done = output.read_bytes(), 63 if is_whole else 24
    reverser.asked.clear()

    def fails(named, source=tuple(SOURCE)):
        with pytest.raises(ValueError, match=named):
            translate.translate_file(reverser, iter(source), output, "in.txt")

    fails(f"first {done} lines of in.txt", ["the cat", *SOURCE[1:]])
    fails(f"in.txt has 20 lines, but {done}", SOURCE[:20])
    if is_whole:
        assert translate.translate_file(reverser, SOURCE, output, "in.txt") == 63
        fails("more than the 63 lines", [*SOURCE, "the cat"])
    for content in (before[:-1], before.replace(b"a", b"u", 1), b"x" + before, *[before + b"mine\n"] * is_whole):
        output.write_bytes(content)
        fails("out.txt is not what out.txt.progress.json says")
        assert output.read_bytes() == content
    output.write_bytes(before)
    progress.unlink()
    fails("out.txt exists")
    progress.write_text('{"settings": {}, "lines": 3}')
    fails("'size'")
    assert output.read_bytes() == before and not reverser.asked


def test_only_one_process_writes_an_output(reverser, tmp_path):
    (tmp_path / "in.txt").write_text("the dog\n")
    files = str(tmp_path / "in.txt"), str(tmp_path / "out.txt")

    def second():
        with pytest.raises(ValueError, match="--output=.*out.txt is in use by process"):
            translate.translate(lambda: pytest.fail("the model was opened"), *files)
        return reverser

    for place, error, named in (
        ("new/out.txt", FileNotFoundError, "--output=.*new/out.txt"),
        ("in.txt", ValueError, "choose another --output"),
        (".", ValueError, "must be a local file"),
    ):
        with pytest.raises(error, match=named):
            translate.translate(lambda: pytest.fail("the model was opened"), files[0], str(tmp_path / place))
    translate.translate(second, *files)
    assert (tmp_path / "out.txt").read_text() == "god eht\n"
    assert sorted(os.listdir(tmp_path)) == ["in.txt", "out.txt", "out.txt.progress.json"]


def test_standard_output_is_utf8_in_every_locale(reverser, tmp_path, monkeypatch):
    (tmp_path / "in.txt").write_text("ei\u0109\n")
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="latin-1"))
    translate.translate(lambda: reverser, str(tmp_path / "in.txt"), "-")
    assert written.getvalue().decode("utf-8") == "\u0109ie\n"


def test_a_line_that_is_too_long_is_named(reverser, tmp_path, monkeypatch):
    """By its number in the file; what is before its window is kept."""
    source, output = [*SOURCE[:20], "long " * 9, *SOURCE[20:]], tmp_path / "out.txt"
    for _ in range(2):
        with pytest.raises(ValueError, match="in.txt: line 21 has 45 tokens, .* 30"):
            translate.translate_file(reverser, iter(source), output, "in.txt")
        assert len(output.read_text().splitlines()) == 16
    with pytest.raises(ValueError, match="in.txt: line 21 has"):
        list(translate.translate_stream(reverser, source, "in.txt"))
    monkeypatch.setattr(translate, "LARGEST_LINE", 9)
    stream = io.BytesIO(b"abcd\nefg\nabcd\nefg\n" + b"x" * 10)
    windows = translate.translate_stream(reverser, translate.lines_of(stream, "in.txt"), "in.txt")
    assert [next(windows) for _ in range(3)] == ["dcba", "gfe", "dcba"], "few lines are in memory"
    with pytest.raises(ValueError, match=r"in.txt, line 5: .* 9 "):
        list(windows)


def test_spaces_around_a_text_are_left_out():
    """A byte-level tokenizer would give the first word another token; the training texts have no such spaces."""
    read = []
    tokenizer = types.SimpleNamespace(
        encode=lambda text: read.append(text) or [], encode_batch=lambda texts: read.extend(texts) or [[]]
    )
    of_nothing = translate.Translator(small.model(), {}, tokenizer, DecodingConfig(), 1, "run")
    assert of_nothing([" the dog\t"])[0] == [of_nothing.beginning(" the dog\n", 5)]
    assert read == ["the dog"] * 2


def test_lines_end_at_line_feeds_only():
    """A byte order mark is left out at the beginning of a file; bytes that are no UTF-8 are an error."""
    separators = "\x0b\x0c\x1c\x85\u2028\u2029"
    stream = io.BytesIO(f"\ufeffa {separators} b\r\n\nc\rd\n\ufeff\r\nlast".encode())
    assert list(translate.lines_of(stream, "in.txt")) == [f"a {separators} b", "", "c\rd", "\ufeff", "last"]
    assert list(translate.lines_of(io.BytesIO(b""), "in.txt")) == []
    found = translate.lines_of(io.BytesIO(b"one\ntw\xc3\xb6\nth\xe9ree\n"), "in.txt")
    assert [next(found), next(found)] == ["one", "twö"]
    with pytest.raises(ValueError, match="in.txt, line 3: .*UTF-8"):
        next(found)
