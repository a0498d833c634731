"""Scores of a run's test sets: what is stored is used again only while it is what would be computed."""

import dataclasses
import json
import types

import pytest
import sacrebleu
from etils import epath

from ag_jax.data.parallel.pairs import LinesOfTest
from ag_jax.objectives.config import TranslationConfig
from ag_jax.pretraining import scores
from ag_jax.pretraining.translate import Translation

LINES = LinesOfTest(["a", "", "b\u2028c"], ["A dog runs away.", "x", "Two cats sleep now."])
FOUND = {"a": "A dog runs \u2028 home.", "": "", "b\u2028c": "Two cats sleep."}


@dataclasses.dataclass
class Known:
    """A translator that knows three lines; `asked` counts how often it was asked."""

    name: str = "known"
    asked: int = 0

    def __call__(self, lines):
        self.asked += 1
        return [[Translation(FOUND[line], 0.0, True)] for line in lines]


@pytest.fixture
def translator() -> Known:
    return Known()


@pytest.fixture
def result(translator, tmp_path):
    """A function that scores the test set."""

    def made(lines=LINES, settings=(("decoding", {"beam_size": 2}),), tokenize="13a"):
        return scores._result(epath.Path(tmp_path), "news", lines, translator, dict(settings), tokenize)

    return made


def test_translations_and_scores_are_used_again(result, translator, tmp_path, monkeypatch):
    first = result()
    assert list(first.lines) == list(FOUND.values()) and translator.asked == 1
    assert first.scores["bleu"]["value"] == sacrebleu.corpus_bleu(list(FOUND.values()), [LINES.references]).score
    written = "".join(f"{line}\n" for line in FOUND.values()).encode()
    assert (tmp_path / "translations" / "news.txt").read_bytes() == written
    monkeypatch.setattr(scores.translation, "score", None)
    again = result()
    assert list(again.lines) == list(first.lines) and translator.asked == 1
    assert json.dumps(again.scores) == json.dumps(first.scores)


def test_a_comparison_scores_with_its_own_settings(translator, tmp_path, monkeypatch):
    """Not with those of `config.json`, with which the run may have been scored before."""
    for side, lines in (("source", LINES.sources), ("target", LINES.references)):
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines))
    tests = (f"news={tmp_path}/source={tmp_path}/target",)

    def config_with(tokenize, beam_size):
        translation, decoding = TranslationConfig(tests=tests, tokenize=tokenize), {"beam_size": beam_size}
        return types.SimpleNamespace(translates=True, translation=translation, decoding=decoding)

    def opened(workdir, step, config):
        monkeypatch.setattr(translator, "settings", lambda: config.decoding, raising=False)
        return translator

    monkeypatch.setattr(scores.translate, "open_translator", opened)
    monkeypatch.setattr(scores.run_directory, "read_config", lambda workdir: config_with("13a", 4))
    stored = scores.score_run(tmp_path)["news"]
    assert "|tok:13a|" in stored.scores["bleu"]["signature"]
    for beam_size, asked in ((4, 2), (4, 2), (5, 3)):
        found = scores.score_run(tmp_path, config=config_with("char", beam_size))["news"]
        assert "|tok:char|" in found.scores["bleu"]["signature"] and translator.asked == asked


def test_another_seed_of_sacrebleu_scores_again(result, translator, monkeypatch):
    """The translations stay, also if they cannot be scored; old scores would stand beside differences of a new seed."""
    monkeypatch.setenv("SACREBLEU_SEED", "none")
    with pytest.raises(ValueError, match="SACREBLEU_SEED"):
        result()
    monkeypatch.delenv("SACREBLEU_SEED")
    first = result()
    monkeypatch.setenv("SACREBLEU_SEED", "77")
    second = result()
    assert translator.asked == 1
    assert "|seed:77|" in second.scores["bleu"]["signature"] != first.scores["bleu"]["signature"]
    assert result().scores["chrf"]["interval"] == list(second.scores["chrf"]["interval"])


@pytest.mark.parametrize(
    "change",
    [
        {"settings": (("decoding", {"beam_size": 3}),)},
        {"lines": LinesOfTest(["a", "", "a"], LINES.references)},
        {"lines": LINES._replace(references=["A dog runs.", "x", "y"])},
        {"tokenize": "char"},
    ],
)
def test_what_changed_is_translated_again(result, translator, change):
    result()
    result(**change)
    assert translator.asked == 2


@pytest.mark.parametrize(("old", "new"), [(b"home", b"hame"), (b"\xa8", b"\xff"), (b"\n", b"")])
def test_damaged_translations_are_translated_again(result, translator, tmp_path, old, new):
    first, path = result(), tmp_path / "translations" / "news.txt"
    content = path.read_bytes()
    path.write_bytes(content.replace(old, new))
    assert path.read_bytes() != content
    assert list(result().lines) == list(first.lines) and path.read_bytes() == content and translator.asked == 2


@pytest.mark.parametrize("change", [lambda of: of.pop("ter"), lambda of: of["ter"].pop("value"), lambda of: of.clear()])
def test_scores_that_lack_something_are_computed_again(result, translator, tmp_path, change):
    first = result()
    stored = json.loads((tmp_path / "translations" / "news.json").read_text())
    change(stored["scores"])
    (tmp_path / "translations" / "news.json").write_text(json.dumps(stored))
    assert result().scores["ter"] == first.scores["ter"] and translator.asked == 1
