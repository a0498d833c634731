"""Scores of a run's test sets: what is stored is used again only while it is what would be computed."""

import dataclasses
import types

import pytest
import sacrebleu

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
def score(translator, tmp_path, monkeypatch):
    """A function that scores a run which has the test set `news`, as `ag-jax evaluate` does."""

    def open_translator(workdir, step, *, config):
        settings = {"beam_size": config.decoding, "step": step}
        monkeypatch.setattr(translator, "settings", lambda: settings, raising=False)
        return translator

    def run(lines=LINES, tokenize="13a", search=2, step=None):
        config = types.SimpleNamespace(
            translates=True, translation=TranslationConfig(tests=("news=a=b",), tokenize=tokenize), decoding=search
        )
        monkeypatch.setattr(scores.run_directory, "read_config", lambda workdir: config)
        monkeypatch.setattr(scores.pretraining_corpus, "read_tests", lambda _: {"news": lines})
        monkeypatch.setattr(scores.translate, "open_translator", open_translator)
        return scores.score_run(tmp_path, step)["news"]

    return run


def test_translations_and_scores_are_used_again(score, translator, tmp_path, monkeypatch):
    first = score()
    assert list(first.lines) == list(FOUND.values()) and translator.asked == 1
    assert first.scores["bleu"]["value"] == sacrebleu.corpus_bleu(list(FOUND.values()), [LINES.references]).score
    written = "".join(f"{line}\n" for line in FOUND.values()).encode()
    assert (tmp_path / "translations" / "news" / "translations.txt").read_bytes() == written
    monkeypatch.setattr(scores.translation, "score", None)
    assert score() == first and translator.asked == 1


@pytest.mark.parametrize(
    "change",
    [
        {"search": 3},
        {"step": 7},
        {"lines": LinesOfTest(["a", "", "a"], LINES.references)},
        {"lines": LINES._replace(references=["A dog runs.", "x", "y"])},
        {"tokenize": "char"},
    ],
)
def test_what_changed_is_translated_again(score, translator, change):
    first = score()
    score(**change)
    assert translator.asked == 2
    assert score() == first and translator.asked == 3


def test_another_seed_of_sacrebleu_scores_again(score, translator, monkeypatch):
    """Old scores would stand beside differences of a new seed. Nothing is translated that cannot be scored."""
    monkeypatch.setenv("SACREBLEU_SEED", "none")
    with pytest.raises(ValueError, match="SACREBLEU_SEED"):
        score()
    assert translator.asked == 0
    monkeypatch.delenv("SACREBLEU_SEED")
    first = score()
    monkeypatch.setenv("SACREBLEU_SEED", "77")
    assert "|seed:77|" in score().scores["bleu"]["signature"] != first.scores["bleu"]["signature"]


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("translations.txt", b"home", b"hame"),
        ("translations.txt", b"\xa8", b"\xff"),
        ("translations.txt", b"\n", b""),
        ("result.json", b'"value": ', b'"value": 1'),
    ],
)
def test_damage_is_named_and_the_test_set_translated_again(score, translator, tmp_path, capsys, file, old, new):
    first, path = score(), tmp_path / "translations" / "news" / file
    content = path.read_bytes()
    path.write_bytes(content.replace(old, new))
    assert path.read_bytes() != content
    assert score() == first and path.read_bytes() == content and translator.asked == 2
    assert str(path) in capsys.readouterr().err


def test_translations_of_a_directory_that_cannot_be_written(score, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "translations").write_text("a file, where the folder would be")
    assert score().lines == list(FOUND.values())
    assert (tmp_path / "ag-jax-output" / tmp_path.name / "translations" / "news" / "result.json").exists()
    assert "cannot write to" in capsys.readouterr().err
