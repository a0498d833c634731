"""Translation as a user meets it: train on files of pairs, evaluate, translate files and streams, and from Python."""

import functools
import io
import json
import pathlib
import sys

import pytest
import sacrebleu

from ag_jax.api.model import load
from ag_jax.data.parallel import toys
from ag_jax.pretraining import translate
from tests import commands

LINES = 6  # of the test set
SMALL = {
    "model.layers": 1,
    "decoder.layers": 1,
    "model.width": 16,
    "model.heads": 2,
    "model.remat": "none",
    "data.sequence_length": 16,
    "training.tensorboard": False,
    "training.evaluate_every": "none",
    "training.checkpoint_every": 3,
    "training.milestones": "()",
    "translation.average": 3,
    "decoding.max_length": "1.0x+4",
}
# Words, an empty line, words without a known letter, spaces alone, spaces around a line, a line without a line feed.
INPUT = "the red dog sees a cat\n\n一二 三\n   \n  the red dog sees a cat \r\nthis happy child likes the old tree"


def _read_from(path: str) -> None:
    """Replace the standard input of a command, which multiprocessing has replaced before."""
    sys.stdin = io.TextIOWrapper(io.BytesIO(pathlib.Path(path).read_bytes()))


def ag_jax(folder, *arguments, before=None) -> commands.Finished:
    done = commands.run(arguments, cwd=folder, before=before)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A user's folder, with the files of a toy language and a run that has been trained on them for a few steps."""
    folder = tmp_path_factory.mktemp("user")
    toys.write(folder, "dictionary", {"train": 300, "test": LINES})
    files = "source=train.source,target=train.target,test_source=test.source,test_target=test.target"
    settings = [f"--config.{key}={value}" for key, value in SMALL.items()]
    done = ag_jax(folder, "train", f"--config=translate:{files},steps=10", *settings, "--workdir=runs/mine")
    assert "size=tiny" in done.stderr and "NLL" in done.stdout
    (folder / "new.en").write_bytes(INPUT.encode())
    return folder


def test_streams_and_python_get_the_same_translations_and_files_others_by_other_settings(folder):
    """There are as many lines of output as of input."""
    read = functools.partial(_read_from, str(folder / "new.en"))
    translated = ag_jax(folder, "translate", "--workdir=runs/mine", "--input=-", "--output=-", before=read).stdout
    lines = translated.split("\n")
    assert len(lines) == 7 and lines.pop() == "", "six lines, each with its end"
    assert lines[1] == lines[3] == "" and all(lines[number] for number in (0, 2, 5))
    assert lines[4] == lines[0], "spaces around a line, and how it ends, make no difference"
    translated_by, texts = load(folder / "runs/mine").translate, INPUT.replace("\r", "").split("\n")
    assert translated_by(texts) == lines and translated_by(texts[0]) == lines[0]
    best = translated_by(texts[0], alternatives=2)
    assert best[0] == lines[0] and len(best) == 2 and best[1] != best[0]

    flags = ("--input=new.en", "--output=short.de", "--decoding=max_length=2,beam_size=1")
    ag_jax(folder, "translate", "--workdir=runs/mine", *flags)
    short = (folder / "short.de").read_text()
    assert short != translated and len(short.split("\n")) == 7


def test_evaluate_scores_the_test_set(folder):
    done = ag_jax(folder, "evaluate", "--workdir=runs/mine")
    found = json.loads((folder / "runs/mine/evaluation.json").read_text())
    assert json.loads(done.stdout) == found and found["nll"] > 0
    lines = (folder / "runs/mine/translations/test/translations.txt").read_text().split("\n")[:-1]
    references = (folder / "test.target").read_text().split("\n")[:-1]
    assert len(lines) == len(references) == LINES
    for name, scorer in (("bleu", sacrebleu.corpus_bleu), ("chrf", sacrebleu.corpus_chrf)):
        assert found["translations"]["test"][name]["value"] == pytest.approx(scorer(lines, [references]).score)
    sources = (folder / "test.source").read_text().split("\n")[:-1]
    assert load(folder / "runs/mine").translate(sources) == lines


def test_no_line_break_stays_in_a_translation(folder, monkeypatch):
    """A byte-level model may write any character, also those at which Python and sacreBLEU end a line."""
    opened = translate.open_translator(folder / "runs/mine")
    monkeypatch.setattr(opened.tokenizer, "decode", lambda ids: " a\rb\r\nc\vd\fe\x85f\u2028g\n")
    assert opened(["the dog"])[0][0].text == "a b c d e f g"
